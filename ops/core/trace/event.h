// An event of the flight recorder: one collective, one request to a parameter server, or one span
// of time that Python names.
#ifndef TFDIST_OPS_CORE_TRACE_EVENT_H_
#define TFDIST_OPS_CORE_TRACE_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tfdist {

enum class EventKind : uint8_t { kCollective = 1, kRequest = 2, kSpan = 3 };

enum class EventState : uint8_t {
  kSubmitted = 1,
  kStarted = 2,  // its first byte has moved
  kDone = 3,
  kFailed = 4,
};

// Python declares the same structure (ops/trace/events.py). Texts end with a zero unless they
// fill their field; what is cut ends with "...".
struct Event {
  uint64_t sequence = 0;      // of this process's events, from 1
  uint64_t communicator = 0;  // the same number on all its ranks
  uint64_t key = 0;           // of the collective
  uint64_t number = 0;        // of this execution of the key; of a request, its id
  uint64_t signature = 0;     // hash of all that must be equal on all ranks
  uint64_t bytes = 0;
  uint64_t elements = 0;  // 0 where ranks may differ
  // Nanoseconds of the steady clock; 0: not yet.
  uint64_t submitted = 0;
  uint64_t started = 0;
  uint64_t ended = 0;
  int32_t rank = -1;  // of this process in the communicator
  int32_t size = 0;   // of the communicator
  int32_t peer = -1;  // the root, or the server
  EventKind kind = EventKind::kSpan;
  EventState state = EventState::kSubmitted;
  uint8_t unused[2] = {};
  char operation[16] = {};  // "all_reduce", "pull"
  char dtype[16] = {};
  char name[64] = {};
  char detail[64] = {};  // shapes
  char error[64] = {};
};

// Writes text into a field, cut to its size.
void SetText(char* field, size_t size, std::string_view text);

template <size_t kSize>
void SetText(char (&field)[kSize], std::string_view text) {
  SetText(field, kSize, text);
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_TRACE_EVENT_H_
