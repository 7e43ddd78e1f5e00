// The functions that Python calls through ctypes, to read the recorder and to record spans.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/trace/event_ring.h"

using tfdist::Event;
using tfdist::ProcessEvents;
using tfdist::Status;
using tfdist::StatusCode;

extern "C" {

size_t tfdist_sizeof_recorded_event() { return sizeof(Event); }

uint64_t tfdist_recorder_last() { return ProcessEvents().last(); }

// Copies up to `limit` events from `cursor` on, and returns their number; see EventRing::Read.
size_t tfdist_recorder_read(uint64_t cursor, Event* events, size_t limit, uint64_t* next,
                            uint64_t* lost) {
  const tfdist::EventRing::Reading reading = ProcessEvents().Read(cursor, limit);
  std::copy(reading.events.begin(), reading.events.end(), events);
  *next = reading.next;
  *lost = reading.lost;
  return reading.events.size();
}

// A span of time of the calling program; returns its id.
uint64_t tfdist_recorder_begin(const char* name, const char* detail) {
  Event event;
  event.kind = tfdist::EventKind::kSpan;
  tfdist::SetText(event.operation, "span");
  tfdist::SetText(event.name, name);
  tfdist::SetText(event.detail, detail);
  const tfdist::EventId id = ProcessEvents().Submit(event);
  ProcessEvents().Start(id);
  return id;
}

// An empty `error` means success.
void tfdist_recorder_end(uint64_t id, const char* error) {
  ProcessEvents().End(id, *error == '\0' ? Status() : Status(StatusCode::kInternal, error));
}

int tfdist_recorder_failure_descriptor() { return tfdist::FailureDescriptor(); }

uint32_t tfdist_recorder_take_failures() { return tfdist::TakeFailures(); }

}  // extern "C"
