// The door of the data port: accepts connections and lets in only those whose first frame is a
// valid HELLO.
//
// Whoever else connects (a scanner, a stale worker of an earlier generation, random bytes) is
// dropped and counted. A stranger can cost at most one small buffer for a few seconds, and there is
// room for a bounded number of them.
#ifndef TFDIST_OPS_CORE_GATE_H_
#define TFDIST_OPS_CORE_GATE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <utility>

#include "core/frame.h"
#include "core/socket.h"

namespace tfdist {

inline constexpr size_t kHelloBytes = kTokenBytes + sizeof(uint64_t) + sizeof(uint32_t);

class Gate {
 public:
  // Decides about a well-formed HELLO with the right token and generation.
  using Admit = std::function<bool(uint32_t rank)>;
  using Admitted = std::function<void(uint32_t rank, Fd socket)>;

  explicit Gate(Fd listener) : listener_(std::move(listener)) {}

  // Starts to watch the listener with `epoll`; events carry kListenerTag or a tag from
  // kFirstGuestTag on.
  void Open(int epoll, const Token& token, uint64_t generation, Admit admit, Admitted admitted);

  // Stops listening and drops all guests.
  void Close();

  void OnListenerReady();
  void OnGuestReady(uint64_t tag);
  // Does what is due: drops guests whose time is over, listens again after a pause.
  void CheckTime(TimePoint now);
  TimePoint NextDeadline() const;
  uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }

  static constexpr uint64_t kListenerTag = uint64_t{1} << 40;
  static constexpr uint64_t kFirstGuestTag = kListenerTag + 1;

 private:
  struct Guest {
    uint64_t tag;
    Fd socket;
    TimePoint deadline;
    std::array<char, kHeaderBytes + kHelloBytes> bytes;
    size_t received = 0;
  };

  void Pause();
  void Reject(std::list<Guest>::iterator guest);
  bool IsValid(const Guest& guest, uint32_t* rank) const;

  Fd listener_;
  int epoll_ = -1;
  Token token_{};
  uint64_t generation_ = 0;
  Admit admit_;
  Admitted admitted_;
  uint64_t next_tag_ = kFirstGuestTag;
  std::list<Guest> guests_;                    // oldest first
  TimePoint paused_until_ = TimePoint::max();  // while there are no descriptors left
  std::atomic<uint64_t> rejected_{0};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_GATE_H_
