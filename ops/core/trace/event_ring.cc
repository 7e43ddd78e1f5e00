#include "core/trace/event_ring.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tfdist {
namespace {

// How often a reader looks at a slot that is being written, before it takes the event for lost.
constexpr int kMaxLooks = 1000;

std::atomic<uint32_t> failures{0};

// The word of an event that holds a field, and the field's place in it.
constexpr size_t WordOf(size_t offset) { return offset / sizeof(uint64_t); }
constexpr size_t kSequence = WordOf(offsetof(Event, sequence));
constexpr size_t kSubmitted = WordOf(offsetof(Event, submitted));
constexpr size_t kStarted = WordOf(offsetof(Event, started));
constexpr size_t kEnded = WordOf(offsetof(Event, ended));
constexpr size_t kState = WordOf(offsetof(Event, state));
constexpr size_t kError = WordOf(offsetof(Event, error));

template <typename Word>
void SetState(Word* words, EventState state) {
  uint64_t word = words[kState].load(std::memory_order_relaxed);
  reinterpret_cast<char*>(&word)[offsetof(Event, state) % sizeof word] = static_cast<char>(state);
  words[kState].store(word, std::memory_order_release);
}

}  // namespace

void SetText(char* field, size_t size, std::string_view text) {
  constexpr std::string_view kMark = "...";
  const size_t length = std::min(text.size(), size);
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, size - length);
  if (text.size() > size) std::memcpy(field + size - kMark.size(), kMark.data(), kMark.size());
}

EventRing::EventRing(size_t events) : mask_(events - 1), slots_(new Slot[events]) {}

bool EventRing::Take(EventId id, Slot* slot) const {
  uint64_t expected = 2 * id;
  return slot->version.compare_exchange_strong(expected, 2 * id + 1, std::memory_order_acq_rel);
}

EventId EventRing::Submit(const Event& event, TimePoint at) {
  const EventId id = last_.fetch_add(1, std::memory_order_acq_rel) + 1;
  Slot& slot = SlotOf(id);
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  // Held by a thread that was interrupted 4,096 events ago, or taken by a later event.
  if ((version & 1) != 0 || version > 2 * id) return 0;
  if (!slot.version.compare_exchange_strong(version, 2 * id + 1, std::memory_order_acq_rel)) {
    return 0;
  }
  // Release, and acquire in Read: a thread that reads a word of this event sees the version of this
  // write.
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&event) + i * sizeof word, sizeof word);
    slot.words[i].store(word, std::memory_order_release);
  }
  slot.words[kSequence].store(id, std::memory_order_release);
  slot.words[kSubmitted].store(static_cast<uint64_t>(Nanoseconds(at)), std::memory_order_release);
  SetState(slot.words, EventState::kSubmitted);
  slot.version.store(2 * id, std::memory_order_release);
  return id;
}

void EventRing::Start(EventId id, TimePoint at) {
  if (id == 0) return;
  Slot& slot = SlotOf(id);
  if (!Take(id, &slot)) return;
  slot.words[kStarted].store(static_cast<uint64_t>(Nanoseconds(at)), std::memory_order_release);
  SetState(slot.words, EventState::kStarted);
  slot.version.store(2 * id, std::memory_order_release);
}

void EventRing::End(EventId id, const Status& status, TimePoint at) {
  if (id == 0) return;
  Slot& slot = SlotOf(id);
  if (!Take(id, &slot)) return;
  slot.words[kEnded].store(static_cast<uint64_t>(Nanoseconds(at)), std::memory_order_release);
  if (!status.ok()) {
    char error[sizeof Event::error];
    SetText(error, status.message());
    uint64_t words[sizeof error / sizeof(uint64_t)];
    std::memcpy(words, error, sizeof error);
    for (size_t i = 0; i < std::size(words); ++i) {
      slot.words[kError + i].store(words[i], std::memory_order_release);
    }
  }
  SetState(slot.words, status.ok() ? EventState::kDone : EventState::kFailed);
  slot.version.store(2 * id, std::memory_order_release);
}

EventRing::Reading EventRing::Read(uint64_t cursor, size_t limit) const {
  Reading reading;
  const uint64_t end = last() + 1;
  const uint64_t first = end > mask_ + 1 ? end - (mask_ + 1) : 1;
  const uint64_t wanted = std::max<uint64_t>(cursor, 1);
  reading.next = std::max(wanted, first);
  reading.lost = reading.next - wanted;
  for (; reading.next < end && reading.events.size() < limit; ++reading.next) {
    const Slot& slot = SlotOf(reading.next);
    uint64_t words[kWords];
    bool read = false;
    for (int look = 0; look < kMaxLooks && !read; ++look) {
      const uint64_t before = slot.version.load(std::memory_order_acquire);
      if (before > 2 * reading.next + 1) break;  // overwritten
      if (before != 2 * reading.next) continue;  // being written
      for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
      read = slot.version.load(std::memory_order_relaxed) == before;
    }
    if (read) {
      reading.events.emplace_back();
      std::memcpy(static_cast<void*>(&reading.events.back()), words, sizeof(Event));
    } else {
      ++reading.lost;
    }
  }
  return reading;
}

EventRing& ProcessEvents() {
  static EventRing* const ring = new EventRing();
  return *ring;
}

int FailureDescriptor() {
  static const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return descriptor;
}

void NoteFailure(const Status& status) {
  Failure failure = Failure::kLost;
  if (status.code() == StatusCode::kDeadlineExceeded) failure = Failure::kTimeout;
  if (status.code() == StatusCode::kInvalidArgument) failure = Failure::kMismatch;
  failures.fetch_or(static_cast<uint32_t>(failure), std::memory_order_release);
  const uint64_t one = 1;
  // A full counter is readable, too.
  [[maybe_unused]] const ssize_t ignored = write(FailureDescriptor(), &one, sizeof one);
}

uint32_t TakeFailures() {
  uint64_t count;
  [[maybe_unused]] const ssize_t ignored = read(FailureDescriptor(), &count, sizeof count);
  return failures.exchange(0, std::memory_order_acquire);
}

}  // namespace tfdist
