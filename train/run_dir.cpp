#include <greyhound/train/run_dir.h>

#include <greyhound/core/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace greyhound {

namespace fs = std::filesystem;

namespace {

// Makes the folders of `path` that are missing and returns them, outermost first.
std::vector<fs::path> make_folders(const fs::path& path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path folder = fs::absolute(path).lexically_normal(); !fs::exists(folder, ignored);) {
    if (folder.has_filename()) missing.insert(missing.begin(), folder);
    if (folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  std::vector<fs::path> made;
  for (const fs::path& folder : missing) {
    std::error_code error;
    if (!fs::create_directory(folder, error) && error) {
      for (auto last = made.rbegin(); last != made.rend(); ++last) fs::remove(*last, ignored);
      throw_runtime("run.dir ", path.string(), ": the folder ", folder.string(), " cannot be made: ", error.message());
    }
    made.push_back(folder);
  }
  return made;
}

}  // namespace

std::vector<std::string> RunDir::existing() const {
  std::vector<std::string> found;
  for (const std::string& file : {config(), tokenizer(), metrics(), weights(), checkpoints()}) {
    std::error_code ignored;
    if (fs::exists(file, ignored)) found.push_back(file);
  }
  return found;
}

void RunDir::check(bool may_hold_run) const {
  require(!path_.empty(), "run.dir: is empty; name the folder of the run");
  std::error_code ignored;
  if (fs::exists(path_, ignored) && !fs::is_directory(path_, ignored)) {
    throw_runtime("run.dir ", path_, ": is a file, not a folder");
  }
  const std::vector<std::string> files = existing();
  require(files.empty() || may_hold_run, "run.dir ", path_, ": already holds a run (",
          files.empty() ? "" : fs::path(files[0]).filename().string(),
          "); choose another run.dir, go on with it by --resume, or replace it with --overwrite");
  if (fs::is_symlink(checkpoints(), ignored) && !fs::exists(checkpoints(), ignored)) {
    throw_runtime(checkpoints(), ": is a link that leads nowhere");
  }

  const std::vector<fs::path> made = make_folders(path_);
  const std::string probe = path_ + "/.greyhound-probe-" + std::to_string(getpid());
  const int file = open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  const int error = errno;
  if (file >= 0) {
    close(file);
    unlink(probe.c_str());
  }
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) fs::remove(*folder, ignored);
  if (file < 0) throw_runtime("run.dir ", path_, ": cannot be written: ", std::strerror(error));
}

void RunDir::make_folder() const { make_folders(path_); }

void RunDir::remove_files() const {
  for (const std::string& file : {config(), tokenizer(), metrics()}) {
    std::error_code error;
    fs::remove(file, error);
    if (error) throw_runtime(file, ": cannot be removed: ", error.message());
  }
  std::error_code error;
  if (!fs::exists(weights(), error)) return;
  fs::rename(weights(), previous_weights(), error);
  if (error) throw_runtime(weights(), ": cannot be renamed: ", error.message());
}

void RunDir::remove_unfinished_files() const {
  std::error_code ignored;
  for (fs::directory_iterator entry(path_, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    const bool ours = name.rfind("config.yaml.", 0) == 0 || name.rfind("tokenizer.json.", 0) == 0;
    if (ours && entry->path().extension() == ".tmp") fs::remove(entry->path(), ignored);
  }
}

void RunDir::require_run() const {
  std::error_code ignored;
  require(fs::is_directory(path_, ignored), path_, ": is not the folder of a run");
  for (const std::string& file : {config(), weights(), tokenizer()}) {
    require(fs::exists(file, ignored), path_, ": is not the folder of a run: it holds no ",
            fs::path(file).filename().string());
  }
}

}  // namespace greyhound
