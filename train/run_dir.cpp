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

void RunDir::check(Existing existing_run) const {
  require(!path_.empty(), "run.dir: is empty; name the folder of the run");
  std::error_code ignored;
  if (fs::exists(path_, ignored) && !fs::is_directory(path_, ignored)) {
    throw_runtime("run.dir ", path_, ": is a file, not a folder");
  }
  const std::vector<std::string> files = existing();
  require(files.empty() || existing_run != Existing::refuse, "run.dir ", path_, ": already holds a run (",
          files.empty() ? "" : fs::path(files[0]).filename().string(),
          "); choose another run.dir, go on with it by --resume, or replace it with --overwrite");
  require(existing_run != Existing::resume || fs::exists(checkpoints(), ignored) || !fs::exists(weights(), ignored),
          "run.dir ", path_,
          ": --resume: holds trained weights, but no checkpoint to go on from; model.init_from=", path_,
          " starts from the weights, in another run.dir, and --overwrite replaces them");

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
  for (const std::string& file : existing()) {
    std::error_code error;
    if (file == weights()) continue;
    fs::remove_all(file, error);
    if (error) throw_runtime(file, ": cannot be removed: ", error.message());
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
