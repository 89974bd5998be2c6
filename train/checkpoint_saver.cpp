#include <greyhound/train/checkpoint_saver.h>

#include <greyhound/core/error.h>
#include <greyhound/train/console.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <utility>

namespace greyhound {

namespace {

bool saves_in_background(const Config& config) { return config.checkpoint.every > 0 && config.checkpoint.background; }

}  // namespace

CheckpointSaver::CheckpointSaver(const Context& context, const Config& config, const RunDir& run_dir,
                                 std::shared_ptr<FolderLock> lock, CheckpointInfo info, const ParameterList& parameters,
                                 Trainer& trainer, std::function<void()> make_run_files)
    : config_(config),
      run_dir_(run_dir),
      lock_(std::move(lock)),
      folder_(run_dir),
      info_(std::move(info)),
      parameters_(parameters),
      trainer_(trainer),
      make_run_files_(std::move(make_run_files)),
      snapshot_(context) {
  if (saves_in_background(config)) snapshot_.reserve(trainer);
}

CheckpointSaver::~CheckpointSaver() {
  if (background_.valid()) background_.wait();
}

void CheckpointSaver::save() {
  attempt([this] { finish(); });  // the last one, whose snapshot is about to be overwritten
  attempt([this] {
    take_snapshot();
    const bool background = saves_in_background(config_);
    background_ = std::async(background ? std::launch::async : std::launch::deferred, [this] { write(); });
    if (!background) finish();
  });
}

void CheckpointSaver::check() {
  if (!background_.valid() || background_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  attempt([this] { finish(); });
}

void CheckpointSaver::save_now() {
  try {
    finish();
  } catch (const std::exception& error) {
    spdlog::warn("{}", error.what());  // another attempt follows
  }
  if (saved_step_ == trainer_.steps()) return;
  take_snapshot();
  write();
  saved_step_ = info_.step;
}

void CheckpointSaver::finish() {
  if (!background_.valid()) return;
  background_.get();
  saved_step_ = info_.step;
}

void CheckpointSaver::take_snapshot() {
  snapshot_.take(trainer_);
  info_.step = trainer_.steps();
  info_.tokens = trainer_.tokens();
  info_.values = snapshot_.values();
  find_folder();
}

void CheckpointSaver::check_folder() const {
  std::error_code ignored;
  if (std::filesystem::exists(run_dir_.path(), ignored) && !lock_->is_at(run_dir_.path())) {
    throw_runtime("run.dir ", run_dir_.path(), ": another folder stands there now");
  }
}

void CheckpointSaver::find_folder() {
  check_folder();
  if (lock_->is_at(run_dir_.path())) return;
  if (config_.checkpoint.on_error == OnError::stop) throw_runtime("run.dir ", run_dir_.path(), ": was removed");
  make_run_files_();
  lock_ = std::make_shared<FolderLock>(run_dir_.path());
  spdlog::warn("run.dir {} was removed; it is made again", run_dir_.path());
}

void CheckpointSaver::write() { folder_.save(info_, parameters_, snapshot_.tensors(), config_.checkpoint.keep); }

void CheckpointSaver::attempt(const std::function<void()>& work) const {
  try {
    work();
  } catch (const std::exception& error) {
    const std::string message = concat("the checkpoint of step ", info_.step, " was not saved: ", error.what());
    if (config_.checkpoint.on_error == OnError::stop) throw_runtime(message);
    spdlog::warn("{}", message);
  }
}

std::int64_t checkpoint_snapshot_bytes(const Config& config, const ParameterList& parameters) {
  if (!saves_in_background(config)) return 0;
  constexpr std::int64_t bytes_per_parameter = 12;  // weights and two moments in fp32
  return parameters.block_elements() * bytes_per_parameter;
}

}  // namespace greyhound
