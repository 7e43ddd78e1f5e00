// A checksum for files: detects accidental truncation and corruption, not deliberate changes.
//
// Each word of eight bytes is mixed into one of four lanes, by a multiplication with an odd number
// and a rotation. Both are invertible, so two lanes that differ stay different while the following
// words are equal.
#ifndef TFDIST_OPS_CORE_BASE_CHECKSUM_H_
#define TFDIST_OPS_CORE_BASE_CHECKSUM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tfdist {

class Checksum {
 public:
  void Add(const void* data, size_t bytes) {
    const char* next = static_cast<const char*>(data);
    total_ += bytes;
    if (pending_ > 0) {
      const size_t taken = std::min(bytes, sizeof(block_) - pending_);
      if (taken > 0) std::memcpy(block_ + pending_, next, taken);
      pending_ += taken;
      next += taken;
      bytes -= taken;
      if (pending_ < sizeof(block_)) return;
      AddBlock(block_);
      pending_ = 0;
    }
    for (; bytes >= sizeof(block_); bytes -= sizeof(block_), next += sizeof(block_)) AddBlock(next);
    if (bytes > 0) std::memcpy(block_, next, bytes);
    pending_ = bytes;
  }

  uint64_t value() const {
    Checksum whole = *this;
    std::memset(whole.block_ + pending_, 0, sizeof(block_) - pending_);
    whole.AddBlock(whole.block_);
    uint64_t value = total_;
    for (const uint64_t lane : whole.lanes_) Mix(lane, &value);
    return value;
  }

 private:
  static void Mix(uint64_t word, uint64_t* lane) {
    const uint64_t x = (*lane ^ word) * 0x9e3779b97f4a7c15;
    *lane = x << 29 | x >> 35;
  }
  void AddBlock(const char* block) {
    uint64_t words[4];
    std::memcpy(words, block, sizeof(words));
    for (int i = 0; i < 4; ++i) Mix(words[i], &lanes_[i]);
  }

  uint64_t lanes_[4] = {1, 2, 3, 4};
  char block_[32] = {};
  size_t pending_ = 0;
  uint64_t total_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_CHECKSUM_H_
