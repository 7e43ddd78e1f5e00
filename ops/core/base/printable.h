// Texts of other processes in messages that reach a terminal.
#ifndef TFDIST_OPS_CORE_BASE_PRINTABLE_H_
#define TFDIST_OPS_CORE_BASE_PRINTABLE_H_

#include <string>

namespace tfdist {

// Returns `text` as UTF-8 in which only line breaks control a terminal: control characters,
// characters that change the direction of text, and invalid UTF-8 are escaped ("\x1b", "\u202e").
std::string Printable(const std::string& text);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_PRINTABLE_H_
