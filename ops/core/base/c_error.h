// Errors of functions called through ctypes: a status code (0: OK), and a message in the caller's
// buffer.
#ifndef TFDIST_OPS_CORE_BASE_C_ERROR_H_
#define TFDIST_OPS_CORE_BASE_C_ERROR_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>

#include "core/base/printable.h"
#include "core/base/status.h"

namespace tfdist {

// Copies `text`, cut to `size` bytes including the terminating zero.
inline void CopyText(const std::string& text, char* out, size_t size) {
  if (size == 0) return;
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

inline int Report(const Status& status, char* error, size_t error_size) {
  CopyText(Printable(status.message()), error, error_size);
  return static_cast<int>(status.code());
}

// Calls `function`, and turns std::bad_alloc into a status.
template <typename Function>
Status WithMemory(const char* what, const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, StrCat("out of memory: ", what));
  }
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_C_ERROR_H_
