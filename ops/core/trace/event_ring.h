// The flight recorder: the last events of this process, written by any thread without a lock.
//
// An event has a slot of the ring from its submission until 4,096 later ones were submitted:
//
//   events   ... 4095 4096 4097 4098      4097 has overwritten event 1
//   slots    ... 4094 4095    0    1
//
// A slot's version is its event's sequence number, twice, plus 1 while a thread writes it. A writer
// takes the slot by a compare-and-swap of the version and never waits: where another thread holds
// the slot, or a later event has it, the write is left out. A reader copies the slot and looks at
// the version before and after, as in a seqlock (Lameter 2005, "Effective Synchronization on
// Linux/NUMA Systems"). The words of an event are atomic, so that a reader beside a writer is no
// data race.
#ifndef TFDIST_OPS_CORE_TRACE_EVENT_RING_H_
#define TFDIST_OPS_CORE_TRACE_EVENT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/trace/event.h"

namespace tfdist {

// Names an event that was submitted; 0 names none.
using EventId = uint64_t;

class EventRing {
 public:
  static constexpr size_t kEvents = 4096;

  // `events` is a power of two.
  explicit EventRing(size_t events = kEvents);

  // Any thread may call these; none of them waits.

  // Records a copy of an event, with its sequence number, the time, and the state kSubmitted.
  EventId Submit(const Event& event, TimePoint at = Clock::now());
  // The first byte has moved. A repeated request starts again.
  void Start(EventId id, TimePoint at = Clock::now());
  void End(EventId id, const Status& status, TimePoint at = Clock::now());

  // The sequence number of the last submitted event; 0 before the first.
  uint64_t last() const { return last_.load(std::memory_order_acquire); }

  struct Reading {
    std::vector<Event> events;  // in order, not always without gaps
    uint64_t next = 0;          // the cursor of the next reading
    uint64_t lost = 0;          // events from the cursor on that were overwritten or left out
  };
  // Reads up to `limit` events, from the one with sequence number `cursor` on. An event that has
  // not ended is to be read again by a reader that wants its end.
  Reading Read(uint64_t cursor, size_t limit) const;

 private:
  static constexpr size_t kWords = sizeof(Event) / sizeof(uint64_t);
  static_assert(sizeof(Event) % sizeof(uint64_t) == 0, "an event is copied by words");

  struct Slot {
    std::atomic<uint64_t> version{0};
    std::atomic<uint64_t> words[kWords];
  };

  Slot& SlotOf(EventId id) const { return slots_[(id - 1) & mask_]; }
  // Takes the slot of an event, or returns false.
  bool Take(EventId id, Slot* slot) const;

  const uint64_t mask_;
  std::atomic<uint64_t> last_{0};
  const std::unique_ptr<Slot[]> slots_;
};

// The ring of this process. It is never destroyed: threads may outlive static objects.
EventRing& ProcessEvents();

// Failures that the process has noticed since they were taken, for the thread that writes the
// recorder's file: it waits for `FailureDescriptor` to be readable.
enum class Failure : uint32_t {
  kTimeout = 1,   // something waited longer than its deadline
  kMismatch = 2,  // the ranks disagree
  kLost = 4,      // a peer was lost, or has ended the communicator
};
void NoteFailure(const Status& status);
// An eventfd; -1 if the kernel gives none.
int FailureDescriptor();
// A sum of `Failure`s.
uint32_t TakeFailures();

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_TRACE_EVENT_RING_H_
