// Encodes plain values as bytes and decodes them, for everything that is parsed from a connection:
// little-endian, without padding, and without reads past the end.
#ifndef TFDIST_OPS_CORE_BASE_WIRE_H_
#define TFDIST_OPS_CORE_BASE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/status.h"

namespace tfdist {

// Little-endian hosts only, like every platform that TensorFlow supports.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

class Writer {
 public:
  // Room for most messages, which would else grow by several allocations.
  Writer() { bytes_.reserve(128); }

  template <typename T>
  Writer& Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  // Cuts `text` to `max_bytes`.
  Writer& PutString(std::string_view text, uint16_t max_bytes = UINT16_MAX) {
    text = text.substr(0, max_bytes);
    Put(static_cast<uint16_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first failure it reads nothing more; Finish returns the failure.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  Reader& Get(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() < sizeof(T)) return Fail();
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return *this;
  }
  Reader& GetString(std::string* text) {
    uint16_t size = 0;
    Get(&size);
    if (failed_ || bytes_.size() < size) return Fail();
    text->assign(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return *this;
  }
  Reader& GetBool(bool* value) {
    uint8_t byte = 0;
    Get(&byte);
    if (byte > 1) return Fail();
    *value = byte == 1;
    return *this;
  }
  // A value of an enumeration, from `first` to `last`.
  template <typename T>
  Reader& GetEnum(T* value, T first, T last) {
    std::underlying_type_t<T> number{};
    Get(&number);
    if (failed_ || number < static_cast<decltype(number)>(first) ||
        number > static_cast<decltype(number)>(last)) {
      return Fail();
    }
    *value = static_cast<T>(number);
    return *this;
  }
  // The number of entries that follow, of at least `entry_bytes` each. Fails if there are not
  // enough bytes for them.
  uint32_t GetCount(size_t entry_bytes) {
    uint32_t count = 0;
    Get(&count);
    if (count > bytes_.size() / entry_bytes) Fail();
    return failed_ ? 0 : count;
  }
  Reader& Fail() {
    failed_ = true;
    bytes_ = {};
    return *this;
  }

  // Fails if a read failed or bytes are left.
  Status Finish(const char* what) const {
    if (!failed_ && bytes_.empty()) return Status();
    return Status(StatusCode::kInvalidArgument, StrCat("malformed ", what));
  }

 private:
  std::string_view bytes_;
  bool failed_ = false;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_WIRE_H_
