#include <greyhound/train/agreement.h>

#include <greyhound/core/comm/launch.h>
#include <greyhound/core/version.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/find_files.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <set>

namespace greyhound {

namespace {

constexpr std::size_t most_named = 4;  // differences in one message

// Everybody's text, in the order of the ranks.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& own) {
  const Context context = Context::cpu();
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::int64_t> sizes(ranks);
  const auto size = static_cast<std::int64_t>(own.size());
  communicator.all_gather(context, tensor(static_cast<const void*>(&size), DType::int64, {1}),
                          tensor(sizes.data(), DType::int64, {communicator.size()}));
  // Padded to the longest: parts of an all_gather are equal.
  const std::int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = own, all(static_cast<std::size_t>(longest) * ranks, '\0');
  padded.resize(static_cast<std::size_t>(longest));
  communicator.all_gather(context, tensor(static_cast<const void*>(padded.data()), DType::uint8, {longest}),
                          tensor(all.data(), DType::uint8, {longest * communicator.size()}));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(all.substr(rank * static_cast<std::size_t>(longest), static_cast<std::size_t>(sizes[rank])));
  }
  return texts;
}

// "rank 1", "ranks 0, 2 and 3", "ranks 0 to 6 and 9".
std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    if (end - i < 2) end = i;
    parts.push_back(end == i ? concat(ranks[i]) : concat(ranks[i], " to ", ranks[end]));
    i = end + 1;
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

// Which ranks have which text, in the order in which the texts come first.
std::vector<std::pair<std::string, std::vector<std::size_t>>> by_text(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> groups;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](auto& group) { return group.first == texts[rank]; });
    if (found == groups.end()) {
      groups.push_back({texts[rank], {rank}});
    } else {
      found->second.push_back(rank);
    }
  }
  return groups;
}

// Kind and message of what `work` throws; empty when it throws nothing.
std::string failure_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::usage ? "u" : "r") + std::string(error.what());
  } catch (const std::bad_alloc&) {
    return "rout of memory on the host";
  } catch (const std::exception& error) {
    return "r" + std::string(error.what());
  }
}

constexpr char separator = '\0';  // in no path and no value

std::string pack(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) text += fact.name + separator + fact.value + separator;
  return text;
}

std::map<std::string, std::string> unpack(const std::string& text) {
  std::map<std::string, std::string> facts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t name_end = text.find(separator, begin), value_end = text.find(separator, name_end + 1);
    facts[text.substr(begin, name_end - begin)] = text.substr(name_end + 1, value_end - name_end - 1);
    begin = value_end + 1;
  }
  return facts;
}

std::string end_hashes(const std::string& path) {
  constexpr std::uintmax_t part = 65536;
  std::ifstream file(path, std::ios::binary);
  std::string begin(part, '\0'), end(part, '\0');
  file.read(begin.data(), part);
  begin.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  file.clear();
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - static_cast<std::streamoff>(part)));
  file.read(end.data(), part);
  end.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  return content_hash(begin + end).substr(0, 12);
}

void add_file(std::vector<Fact>& facts, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) inside.push_back(entry.path().string());
    std::sort(inside.begin(), inside.end());
    for (const std::string& file : inside) {
      if (std::filesystem::is_regular_file(file, error)) add_file(facts, file);
    }
    return;
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  facts.push_back({path, error ? "not there" : concat(size, " bytes, hash ", end_hashes(path))});
}

}  // namespace

void run_together(Communicator& communicator, const std::function<void()>& work) {
  if (communicator.size() == 1) return work();
  const std::string own = failure_of(work);
  std::int64_t failed = own.empty() ? 0 : 1;
  communicator.all_reduce(Context::cpu(), Tensor(&failed, DType::int64, {1}));
  if (failed == 0) return;

  std::string message;
  ErrorKind kind = ErrorKind::runtime;
  std::size_t named = 0;
  for (const auto& [failure, ranks] : by_text(gather_texts(communicator, own))) {
    if (failure.empty()) continue;
    if (named == 0 && failure.front() == 'u') kind = ErrorKind::usage;
    if (++named > most_named) continue;
    const bool everywhere = ranks.size() == static_cast<std::size_t>(communicator.size());
    message += (named > 1 ? "; " : "") + (everywhere ? "" : ranks_text(ranks) + ": ") + failure.substr(1);
  }
  if (named > most_named) message += concat("; and ", named - most_named, " more");
  throw AgreedError(kind, message);
}

int agree_on_gpu(Communicator& communicator, const std::string& wish) {
  if (wish == "cpu") return 0;
  try {
    return std::max(0, choose_gpu(communicator));
  } catch (const Error& error) {
    // A usage Error is thrown by all ranks alike, after the last exchange.
    if (error.kind() == ErrorKind::usage) throw AgreedError(error.kind(), error.what());
    throw;
  }
}

void require_same(Communicator& communicator, const std::string& what, const std::vector<Fact>& facts) {
  if (communicator.size() == 1) return;
  const std::string own = pack(facts);
  const std::vector<std::string> hashes = gather_texts(communicator, content_hash(own));
  if (std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes.front(); }))
    return;

  std::vector<std::map<std::string, std::string>> all;
  for (const std::string& text : gather_texts(communicator, own)) all.push_back(unpack(text));
  std::set<std::string> names;
  for (const auto& of_rank : all) {
    for (const auto& fact : of_rank) names.insert(fact.first);
  }
  std::string message = what;
  std::size_t named = 0;
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const auto& of_rank : all) values.push_back(of_rank.count(name) > 0 ? of_rank.at(name) : "not there");
    const auto groups = by_text(values);
    if (groups.size() == 1 || ++named > most_named) continue;
    message += (named == 1 ? ": " : "; ") + name + " is ";
    for (std::size_t i = 0; i < groups.size(); ++i) {
      message += (i == 0                   ? ""
                  : i + 1 == groups.size() ? " and "
                                           : ", ") +
                 groups[i].first + " on " + ranks_text(groups[i].second);
    }
  }
  if (named == 0) message += ": the same in another order";
  if (named > most_named) message += concat("; and ", named - most_named, " more");
  throw AgreedError(ErrorKind::usage, message);
}

std::vector<Fact> facts_of(const Config& config) {
  std::vector<Fact> facts = {{"the program's version", GREYHOUND_VERSION}};
  for (const ConfigKey& key : config_schema()) facts.push_back({key.name(), format_value(key.get(config), false)});
  return facts;
}

std::vector<Fact> facts_of_files(const Config& config) {
  std::vector<Fact> facts;
  const auto add = [&](const char* key, const std::string& pattern) {
    if (pattern.empty() || pattern == "synthetic") return;
    for (const std::string& path : find_files(key, pattern)) add_file(facts, path);
  };
  add("data.train", config.data.train);
  add("data.val", config.data.val);
  const std::string& tokenizer = config.data.tokenizer;
  if (tokenizer != "byte" && tokenizer != "char") add_file(facts, tokenizer);
  if (!config.model.init_from.empty()) add_file(facts, config.model.init_from);
  return facts;
}

void require_same_inputs(Communicator& communicator, const Config& config) {
  if (communicator.size() == 1) return;
  require_same(communicator, "the configurations of the ranks differ", facts_of(config));
  require_same(communicator, "the data of the ranks differs",
               get_together(communicator, [&] { return facts_of_files(config); }));
}

}  // namespace greyhound
