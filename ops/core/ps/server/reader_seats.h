// The ranks of the readers of a read-only server. Readers are no workers of a job, so they have no
// rank of their own: each connection takes a free one, and gives it back when it ends.
#ifndef TFDIST_OPS_CORE_PS_SERVER_READER_SEATS_H_
#define TFDIST_OPS_CORE_PS_SERVER_READER_SEATS_H_

#include <mutex>
#include <vector>

namespace tfdist::ps {

// Any thread may call it.
class ReaderSeats {
 public:
  explicit ReaderSeats(int count) : taken_(count, false) {}

  // Returns -1 if all are taken.
  int Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t seat = 0; seat < taken_.size(); ++seat) {
      if (taken_[seat]) continue;
      taken_[seat] = true;
      return static_cast<int>(seat);
    }
    return -1;
  }
  void Free(int seat) {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_[seat] = false;
  }

 private:
  std::mutex mutex_;
  std::vector<bool> taken_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_READER_SEATS_H_
