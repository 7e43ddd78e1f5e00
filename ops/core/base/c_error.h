// How functions called through ctypes fail: a status code (0: OK), and a message in the caller's
// buffer.
#ifndef TFDIST_OPS_CORE_BASE_C_ERROR_H_
#define TFDIST_OPS_CORE_BASE_C_ERROR_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>

#include "core/base/status.h"

namespace tfdist {

// Cut to `size` bytes, with the zero at its end.
inline void CopyText(const std::string& text, char* out, size_t size) {
  if (size == 0) return;
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

inline int Report(const Status& status, char* error, size_t error_size) {
  CopyText(status.message(), error, error_size);
  return static_cast<int>(status.code());
}

// Does what may run out of memory, which Python is then told as of any other failure.
template <typename Do>
Status WithMemory(const char* what, const Do& act) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, StrCat("out of memory: ", what));
  }
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_C_ERROR_H_
