#include <greyhound/train/checkpoint_folder.h>

#include <greyhound/core/error.h>
#include <greyhound/train/file_io.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace greyhound {

namespace fs = std::filesystem;

namespace {

constexpr const char* step_prefix = "step_";

std::string name_of_step(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", step_prefix, static_cast<long long>(step));
  return name;
}

// The step of "step_00000100"; -1 for every other name, such as "step_100" and those of unfinished folders.
std::int64_t step_of(const std::string& name) {
  const std::string prefix = step_prefix;
  if (name.rfind(prefix, 0) != 0) return -1;
  std::int64_t step = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return step >= 0 && name == name_of_step(step) ? step : -1;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// An interrupted removal leaves no folder that looks whole: the manifest goes first. Of a link, the link goes.
void remove_checkpoint(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_symlink(folder, ignored)) fs::remove(folder + "/manifest.json", ignored);
  fs::remove_all(folder, ignored);
}

void rename_or_throw(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw_runtime("cannot rename ", from, " to ", to, ": ", error.message());
}

// Removes what it holds unless that was given its name.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(const std::string& path) : path_(path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (!error) fs::create_directories(path, error);
    if (error) throw_runtime("cannot make the folder ", path, ": ", error.message());
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  ~UnfinishedFolder() {
    std::error_code ignored;
    if (!finished_) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  void finish(const std::string& name) {
    sync_folder(path_);
    if (std::error_code ignored; fs::exists(name, ignored)) remove_checkpoint(name);
    rename_or_throw(path_, name);
    finished_ = true;
    sync_folder(fs::path(name).parent_path().string());
  }

 private:
  std::string path_;
  bool finished_ = false;
};

}  // namespace

std::string CheckpointFolder::path(std::int64_t step) const {
  return run_dir_.checkpoints() + "/" + name_of_step(step);
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(run_dir_.checkpoints())) {
    if (step_of(name) >= 0) steps.push_back(step_of(name));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<Checkpoint> CheckpointFolder::newest(std::vector<std::string>& warnings) const {
  std::vector<std::int64_t> left = steps();
  std::vector<std::string> damaged;
  while (!left.empty()) {
    const std::string folder = path(left.back());
    try {
      Checkpoint checkpoint(folder);
      if (checkpoint.info().step != left.back()) throw_runtime(folder, ": holds step ", checkpoint.info().step);
      for (const std::string& bad : damaged) {
        std::error_code ignored;
        fs::remove_all(bad + ".damaged", ignored);
        fs::rename(bad, bad + ".damaged", ignored);
      }
      return checkpoint;
    } catch (const Error& error) {
      warnings.push_back(concat("checkpoint of step ", left.back(), " is not used: ", error.what()));
      damaged.push_back(folder);
      left.pop_back();
    }
  }
  if (!damaged.empty()) {
    throw_runtime(run_dir_.checkpoints(), ": none of the ", damaged.size(),
                  " checkpoints is whole; the newest: ", warnings.front().substr(warnings.front().find(": ") + 2));
  }
  return std::nullopt;
}

void CheckpointFolder::save(const CheckpointInfo& info, const ParameterList& parameters,
                            const std::map<std::string, Tensor>& tensors, std::int64_t keep) const {
  {
    UnfinishedFolder folder(concat(run_dir_.checkpoints(), "/.", name_of_step(info.step), ".tmp"));
    write_checkpoint(folder.path(), info, parameters, tensors);
    folder.finish(path(info.step));
  }
  publish_weights(info.step);
  tidy(info.step, keep);
}

void CheckpointFolder::publish_weights(std::int64_t step) const {
  const std::string source = path(step) + "/model.safetensors";
  std::error_code error;
  if (fs::equivalent(source, run_dir_.weights(), error)) return;
  const std::string beside = run_dir_.path() + "/.model.safetensors.tmp";
  fs::remove(beside, error);
  fs::create_hard_link(source, beside, error);
  if (error && fs::copy_file(source, beside, error)) sync_file(beside);
  if (error) {
    const std::string reason = error.message();
    fs::remove(beside, error);
    throw_runtime("cannot write ", run_dir_.weights(), ": ", reason);
  }
  rename_or_throw(beside, run_dir_.weights());
  fs::remove(run_dir_.previous_weights(), error);
  sync_folder(run_dir_.path());
}

void CheckpointFolder::tidy(std::int64_t step, std::int64_t keep) const {
  std::error_code ignored;
  for (const std::string& name : names_in(run_dir_.checkpoints())) {
    const bool unfinished = name.rfind(std::string(".") + step_prefix, 0) == 0;
    if (unfinished) fs::remove_all(run_dir_.checkpoints() + "/" + name, ignored);
  }
  if (keep == 0) return;
  std::vector<std::int64_t> ours = steps();  // what claims to be later is none of this run's
  ours.erase(std::upper_bound(ours.begin(), ours.end(), step), ours.end());
  const auto surplus = static_cast<std::int64_t>(ours.size()) - keep;
  for (std::int64_t i = 0; i < surplus; ++i) remove_checkpoint(path(ours[static_cast<std::size_t>(i)]));
}

void CheckpointFolder::remove_all() const {
  std::error_code ignored;
  for (const std::string& name : names_in(run_dir_.checkpoints())) {
    const bool ours = name.rfind(step_prefix, 0) == 0 || name.rfind(std::string(".") + step_prefix, 0) == 0;
    if (ours) remove_checkpoint(run_dir_.checkpoints() + "/" + name);
  }
  // A link to a folder elsewhere stays, and what else somebody put there.
  if (!fs::is_symlink(run_dir_.checkpoints(), ignored)) fs::remove(run_dir_.checkpoints(), ignored);
}

}  // namespace greyhound
