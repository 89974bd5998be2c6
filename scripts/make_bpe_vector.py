#!/usr/bin/env python3
"""Makes tests/train/data/bpe_tokenizer.json and bpe_texts.json: a small byte-level BPE, and hard texts with their ids.

    pip install tokenizers tiktoken regex
    python3 scripts/make_bpe_vector.py FOLDER_OF_GPT2   # vocab.json and merges.txt of GPT-2

The small tokenizer is trained by Hugging Face's tokenizers on sentences that this script makes up, so that the tests need
no file of anybody else's; GPT-2's own ids of the same texts are stored beside its ids ("gpt2"), for tests that find GPT-2's
vocabulary. Each text's ids come from both references, which must agree. What is not UTF-8 neither takes: there, words are
split in Python, every invalid byte being a lone surrogate, and merged by tiktoken. Made with tokenizers 0.23 and tiktoken 0.14.
"""

import json
import pathlib
import random
import sys

import regex
import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END = "<|endoftext|>"

WORDS = """the a hound runs over grey hills and it was not what she had thought of when we were there they're don't I've
you'll he'd I'm it's that's loss model token gradient learning weight train rate step batch number 12 345 2026 3.14 0.001
-- ... !? () [] {} => != += // /* */ # $ % & * @ " ' ` ~ ^ _ | \\ < > ; : , .""".split()
FOREIGN = ["naïve café über straße", "日本語のテキスト", "中文字符没有空格", "한국어 문장", "привет мир", "γειά σου κόσμε",
           "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "\U0001F415\U0001F4A8 \U0001F600", "Zürich Ångström", "½ ² Ⅷ ٣"]


def training_text():
    rng = random.Random(9)
    for _ in range(3000):
        words = [rng.choice(WORDS) + rng.choice(["", "", "", "s", "ed", "ing", "er", "ly"]) for _ in range(rng.randrange(3, 12))]
        if rng.random() < 0.2:
            words.insert(rng.randrange(len(words)), rng.choice(FOREIGN))
        yield rng.choice(["", "  ", "    ", "\t", "\n\n"]) + " ".join(words).capitalize() + rng.choice([".", "!", "?", "\n"])


def small_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


# name, bytes, times
TEXTS = [
    ("empty", b"", 1),
    ("sentence", b"The hound runs over the hills.", 1),
    ("contractions", b"I'm, you're, he's, she'd, we'll, they've, don't; 'tis 's 't 're 've 'm 'll 'd 'x '", 1),
    ("capital contractions", b"I'M YOU'RE HE'S 'S 'LL", 1),
    ("quotes", b"''s '''ll \"'d\" a's' 'sa 's's 're're", 1),
    ("runs of spaces", b"a b  c   d    e     f        g", 1),
    ("spaces at the ends", b"   a   ", 1),
    ("only spaces", b" " * 33, 1),
    ("newlines", b"a\nb\n\nc\n\n\nd\r\ne\r\n\r\nf\n", 1),
    ("mixed white space", b"a \n b\n  c\t\td \t e\x0b\x0cf \n\n  \n", 1),
    ("unicode spaces", "a\u00a0b\u2003\u2003c\u3000d\u0085e\u2028f \u2009g\u1680\u202fh\u205fi".encode(), 1),
    ("no white space", "a\u180eb\u200bc\u2060d\ufeffe\u001cf\u001fg".encode(), 1),
    ("digits", b"0 12 345 6789 3.14159 1,000,000 0x1F 1e-4 12345678901234567890", 1),
    ("numbers of other scripts", "½ ² Ⅷ ٣٤٥ १२३ ㊿ a²b 1½".encode(), 1),
    ("punctuation", b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ -- ... !!! ?! (a) [b] {c} a_b a-b", 1),
    ("code", b"for (int i = 0; i < n; ++i) {\n    x[i] += y[i] * 2.5f;  // sum\n}\n", 1),
    ("accents", "naïve café über straße Ångström".encode(), 1),
    ("combining marks", "e\u0301 n\u0303o a\u0308\u0304 \u0301 Z\u0351\u0352\u0353".encode(), 1),
    ("scripts", "日本語のテキスト 中文字符没有空格。한국어 문장 привет мир γειά שלום עולם مرحبا नमस्ते दुनिया".encode(), 1),
    ("emoji", "\U0001F415\U0001F4A8 \U0001F600\U0001F600 \U0001F469\U0001F3FD\u200d\U0001F680 \U0001F1E9\U0001F1EA \u2764\ufe0f".encode(), 1),
    ("last code points", "\ud7ff\ue000\uffff\U00010000\U0010ffff \ufffd".encode(), 1),
    ("NUL and controls", bytes(range(32)) + b"\x7f a\x00b \x00 \x00\x00", 1),
    ("special token as text", b"a<|endoftext|>b <|endoftext|>", 1),
    ("byte order mark", b"\xef\xbb\xbfThe", 1),
    ("a long word", b"a", 3001),
    ("a long word of syllables", b"lossmodeltoken", 100),
    ("long punctuation", b"-=", 700),
    ("many newlines", b"\n", 2000),
    ("many spaces and a word", b" " * 777 + b"x", 1),
    ("long word without spaces", "語のテ".encode(), 150),
    ("invalid bytes", b"a\xffb \xfe\xfe 1\x80 \xc3( \xe6\x97 x\xf0\x9f\x90y", 1),
    ("overlong, surrogate, beyond", b"\xc0\xaf \xe0\x80\xaf a\xed\xa0\x80b \xf4\x90\x80\x80 \xf5\x80", 1),
    ("cut short", b"caf\xc3", 1),
    ("all bytes", bytes(range(256)), 1),
    ("invalid in white space", b"a \xff \n\x85\n b\xa0 ", 1),
]


def byte_alphabet():
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    return {**{chr(byte): byte for byte in printing}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


def as_tiktoken(tokenizer):
    alphabet = byte_alphabet()
    vocab = tokenizer.get_vocab()
    ranks = {bytes(alphabet[c] for c in token): id for token, id in vocab.items() if token != END}
    return tiktoken.Encoding("bpe", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: vocab[END]})


def encode(tokenizer, reference, data):
    text = data.decode("utf-8", "surrogateescape")
    ids = []
    for word in regex.findall(PATTERN, text):
        ids += reference._encode_single_piece(word.encode("utf-8", "surrogateescape"))
    if not any(0xDC80 <= ord(c) <= 0xDCFF for c in text):
        assert ids == reference.encode_ordinary(text)
        assert END in text or ids == tokenizer.encode(text).ids
    return ids


def main():
    folder = pathlib.Path(sys.argv[1])
    out = pathlib.Path(__file__).resolve().parent.parent / "tests/train/data"
    out.mkdir(exist_ok=True)
    small = small_tokenizer()
    (out / "bpe_tokenizer.json").write_text(json.dumps(json.loads(small.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    gpt2 = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    small_reference, gpt2_reference = as_tiktoken(small), as_tiktoken(gpt2)
    lines = []
    for name, data, times in TEXTS:
        lines.append(json.dumps({"name": name, "hex": data.hex(), "times": times,
                                 "ids": encode(small, small_reference, data * times),
                                 "gpt2": encode(gpt2, gpt2_reference, data * times)}, separators=(",", ":")))
    (out / "bpe_texts.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
