// Sizes that are computed from numbers of a file or of a peer.
//
//     const CheckedSize bytes = CheckedSize(rows) * width * sizeof(float);
//     if (!bytes.Is(payload.size())) return refusal;
//
// Plain arithmetic wraps around: rows = 2^62 + 4 would need 16 bytes.
#ifndef TFDIST_OPS_CORE_BASE_CHECKED_SIZE_H_
#define TFDIST_OPS_CORE_BASE_CHECKED_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace tfdist {

// A product or a sum above 2^64 - 1 is no size: it has no value, nor has anything computed from it.
class CheckedSize {
 public:
  CheckedSize(uint64_t value = 0) : value_(value) {}  // NOLINT: numbers are operands

  friend CheckedSize operator*(CheckedSize a, CheckedSize b) {
    a.wraps_ = a.wraps_ || b.wraps_ || __builtin_mul_overflow(a.value_, b.value_, &a.value_);
    return a;
  }
  friend CheckedSize operator+(CheckedSize a, CheckedSize b) {
    a.wraps_ = a.wraps_ || b.wraps_ || __builtin_add_overflow(a.value_, b.value_, &a.value_);
    return a;
  }
  CheckedSize& operator+=(CheckedSize other) { return *this = *this + other; }

  std::optional<uint64_t> value() const {
    return wraps_ ? std::nullopt : std::optional<uint64_t>(value_);
  }
  bool Is(uint64_t size) const { return !wraps_ && value_ == size; }
  bool IsAtMost(uint64_t limit) const { return !wraps_ && value_ <= limit; }
  // For an error message.
  std::string text() const { return wraps_ ? "more than 2^64" : std::to_string(value_); }

 private:
  uint64_t value_;
  bool wraps_ = false;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_CHECKED_SIZE_H_
