#include "core/base/printable.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tfdist {
namespace {

struct Character {
  uint32_t code;
  // Bytes; 0 if there is no character of UTF-8.
  size_t length;
};

// Reads the character of UTF-8 at `at`.
Character ReadCharacter(const std::string& text, size_t at) {
  const auto byte = [&text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return {first, 1};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < length) return {first, 0};
  uint32_t code = first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {first, 0};
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[length] || code > 0x10ffff || is_surrogate) return {first, 0};
  return {code, length};
}

bool Controls(uint32_t code) {
  if (code < 0xa0) return (code < 0x20 && code != '\n') || code >= 0x7f;
  return code == 0x061c || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

}  // namespace

std::string Printable(const std::string& text) {
  std::string printable;
  printable.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [code, length] = ReadCharacter(text, at);
    if (length == 0 || Controls(code)) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
      printable += escaped;
    } else {
      printable.append(text, at, length);
    }
    at += length == 0 ? 1 : length;
  }
  return printable;
}

}  // namespace tfdist
