// Memory between guards for tests of the loss, on whatever backend a test runs.
#pragma once

#include <greyhound/core/memory.h>
#include <tests/backend.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

namespace greyhound::test {

// Aligned bytes between guards that must stay as they were. The host reads and writes them through data(), the backend
// under test through on_device(): on a GPU that is a copy, kept up to date at these two calls. So after a write through
// data(), a pointer from an earlier on_device() shows old bytes until on_device() is called again.
class Block {
 public:
  explicit Block(std::size_t bytes, int fill = 0xff)
      : bytes_(bytes), memory_(static_cast<unsigned char*>(allocate(Device::cpu(), total()))) {
    std::memset(memory_, guard_byte, total());
    std::memset(memory_ + guard, fill, bytes);
  }
  Block(const Block& other) : Block(other.bytes_) {
    other.fetch();
    std::memcpy(memory_, other.memory_, total());
  }
  Block(Block&& other) noexcept
      : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)), mirror_(std::move(other.mirror_)) {}
  Block& operator=(Block other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    std::swap(mirror_, other.mirror_);
    return *this;
  }
  ~Block() { deallocate(Device::cpu(), memory_); }

  unsigned char* data() {
    fetch();
    if (mirror_) mirror_->state = Mirror::host_is_newer;
    return memory_ + guard;
  }
  const unsigned char* data() const {
    fetch();
    return memory_ + guard;
  }
  // The same bytes for operators of the backend under test, to read and to write.
  unsigned char* on_device() {
    if (BackendScope::device() == nullptr) return data();
    if (!mirror_) mirror_ = std::make_unique<Mirror>(*BackendScope::device(), total());
    if (mirror_->state == Mirror::host_is_newer) mirror_->upload(memory_);
    mirror_->state = Mirror::device_is_newer;
    return mirror_->memory + guard;
  }
  std::size_t bytes() const { return bytes_; }
  bool guards_intact() const {
    fetch();
    for (std::size_t i = 0; i < guard; ++i) {
      if (memory_[i] != guard_byte || memory_[guard + bytes_ + i] != guard_byte) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = memory_alignment;
  static constexpr unsigned char guard_byte = 0xa5;
  std::size_t total() const { return bytes_ + 2 * guard; }

  struct Mirror {
    enum State { same, host_is_newer, device_is_newer };

    Mirror(const Context& context, std::size_t bytes)
        : context(context), bytes(bytes), memory(static_cast<unsigned char*>(allocate(context.device(), bytes))) {}
    ~Mirror() { deallocate(context.device(), memory); }
    Mirror(const Mirror&) = delete;
    Mirror& operator=(const Mirror&) = delete;

    void upload(const void* from) {
      copy_bytes(context, memory, context.device(), from, Device::cpu(), bytes);
      context.synchronize();
    }
    void download(void* to) const {
      copy_bytes(context, to, Device::cpu(), memory, context.device(), bytes);
      context.synchronize();
    }

    Context context;
    std::size_t bytes;
    unsigned char* memory;
    State state = host_is_newer;
  };

  void fetch() const {
    if (!mirror_ || mirror_->state != Mirror::device_is_newer) return;
    mirror_->download(memory_);
    mirror_->state = Mirror::same;
  }

  std::size_t bytes_;
  unsigned char* memory_;
  std::unique_ptr<Mirror> mirror_;  // nullptr: no backend but the host has used it
};

}  // namespace greyhound::test
