#include <greyhound/core/error.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/yaml_reader.h>

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <sstream>

namespace greyhound {
namespace {

std::string place(const std::string& name, const YAML::Mark& mark) {
  if (mark.is_null()) return name;
  return concat(name, ":", mark.line + 1, ":", mark.column + 1);
}

class IgnoreEvents final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Up to two. For some texts, such as ",@", yaml-cpp finds one empty document after the other for ever: nobody may ask
// for all.
int count_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  IgnoreEvents ignore;
  int count = 0;
  while (count < 2 && parser.HandleNextDocument(ignore)) ++count;
  return count;
}

// The only document; none when there is none, or more.
struct Document {
  int count = 0;  // up to two
  YAML::Node root;
};

Document load_document(const std::string& text, const std::string& name) {
  try {
    Document document;
    document.count = count_documents(text);
    if (document.count == 1) document.root = YAML::Load(text);
    return document;
  } catch (const YAML::DeepRecursion& error) {
    throw_usage(place(name, error.mark), ": bad YAML: nested too deeply, expected sections with keys below them");
  } catch (const YAML::Exception& error) {
    throw_usage(place(name, error.mark), ": bad YAML: ", error.msg);
  }
}

const char* kind_of(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Sequence: return "a list";
    case YAML::NodeType::Map: return "a section";
    case YAML::NodeType::Scalar: return "a value";
    default: return "nothing";
  }
}

std::string key_text(const YAML::Node& key, const std::string& name, const char* what) {
  require(key.IsScalar(), place(name, key.Mark()), ": expected the name of a ", what, ", got ", kind_of(key));
  require(!key.Scalar().empty(), place(name, key.Mark()), ": expected the name of a ", what, ", got ''");
  return one_line(key.Scalar());
}

// yaml-cpp keeps duplicates as they come, so it is here that they are found.
class DuplicateCheck {
 public:
  void add(const std::string& what, const std::string& where) {
    const auto [first, inserted] = seen_.emplace(what, where);
    require(inserted, where, ": duplicate ", what, ", already given at ", first->second);
  }

 private:
  std::map<std::string, std::string> seen_;
};

// yaml-cpp tags quoted scalars "!" and plain ones "?".
bool is_quoted(const YAML::Node& node) { return node.Tag() == "!"; }

// yaml-cpp takes the rest of the file for a quoted scalar whose closing quote is missing.
void require_closed(const YAML::Node& node, const std::string& text, const std::string& name) {
  const std::size_t start = static_cast<std::size_t>(node.Mark().pos);
  if (node.Mark().is_null() || start >= text.size()) return;
  const char quote = text[start];
  if (quote != '"' && quote != '\'') return;
  for (std::size_t i = start + 1; i < text.size(); ++i) {
    const bool escaped = quote == '"' ? text[i] == '\\' : text.compare(i, 2, "''") == 0;
    if (escaped) {
      ++i;
    } else if (text[i] == quote) {
      return;
    }
  }
  throw_usage(place(name, node.Mark()), ": bad YAML: the closing ", quote, " is missing");
}

void read_section(const std::string& section, const std::string& section_where, const YAML::Node& keys,
                  const std::string& name, const std::string& text, std::vector<YamlEntry>& entries) {
  DuplicateCheck duplicates;
  for (const auto& item : keys) {
    YamlEntry entry;
    entry.section = section;
    entry.section_where = section_where;
    entry.key_where = place(name, item.first.Mark());
    entry.key = key_text(item.first, name, "key");
    duplicates.add("key " + section + "." + entry.key, entry.key_where);
    require(!item.second.IsNull(), entry.key_where, ": ", section, ".", entry.key,
            " has no value (empty text is written \"\")");
    require(item.second.IsScalar(), place(name, item.second.Mark()), ": ", section, ".", entry.key,
            ": expected one value, got ", kind_of(item.second));
    entry.where = place(name, item.second.Mark());
    entry.text = item.second.Scalar();
    entry.quoted = is_quoted(item.second);
    if (entry.quoted) require_closed(item.second, text, name);
    entries.push_back(entry);
  }
}

}  // namespace

std::vector<YamlEntry> read_yaml(const std::string& text, const std::string& name) {
  const Document document = load_document(text, name);
  if (document.count == 0) return {};
  require(document.count == 1, name, ": expected one YAML document, found more");
  const YAML::Node& root = document.root;
  if (root.IsNull()) return {};
  require(root.IsMap(), place(name, root.Mark()), ": expected sections such as `model:`, got ", kind_of(root));

  std::vector<YamlEntry> entries;
  DuplicateCheck duplicates;
  for (const auto& item : root) {
    const std::string where = place(name, item.first.Mark());
    const std::string section = key_text(item.first, name, "section");
    duplicates.add("section " + section, where);
    // The section itself is an entry without a key, so that an unknown one is reported even when it is empty.
    entries.push_back({section, "", "", false, where, where, where});
    if (item.second.IsNull()) continue;
    require(item.second.IsMap(), where, ": expected keys below ", section, ", got ", kind_of(item.second),
            is_config_section(section) ? "" : suggest_section(section));
    read_section(section, where, item.second, name, text, entries);
  }
  return entries;
}

YamlEntry read_yaml_scalar(const std::string& text, const std::string& where) {
  YamlEntry entry;
  entry.where = entry.key_where = entry.section_where = where;
  entry.text = text;
  const bool starts_quoted = !text.empty() && (text.front() == '"' || text.front() == '\'');
  if (!starts_quoted) return entry;  // as typed: a shell already has rules enough
  const Document document = load_document(text, where);
  require(document.count == 1 && document.root.IsScalar(), where, ": expected one value, got ", one_line(text));
  require_closed(document.root, text, where);
  entry.text = document.root.Scalar();
  entry.quoted = true;
  return entry;
}

}  // namespace greyhound
