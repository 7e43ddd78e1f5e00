// A list of tensors as one flat range of bytes, without copying them together.
//
//     tensors     [ a a a a ][ b b ][ c c c c c c ]
//     flat view     0 1 2 3    4 5    6 7 8 9 10 11
//     Slice(3, 8)         ^ ^^^^^    ^^^             -> pieces a[3:4], b[0:2], c[0:2]
#ifndef TFDIST_OPS_CORE_BASE_FLAT_VIEW_H_
#define TFDIST_OPS_CORE_BASE_FLAT_VIEW_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace tfdist {

class FlatView {
 public:
  FlatView() = default;
  // `pieces` refer to the tensors' memory, which the view does not own.
  explicit FlatView(std::vector<iovec> pieces) : pieces_(std::move(pieces)) {
    begins_.reserve(pieces_.size());
    for (const iovec& piece : pieces_) {
      begins_.push_back(bytes_);
      bytes_ += piece.iov_len;
    }
  }

  size_t bytes() const { return bytes_; }

  // Copies into a view with pieces of the same sizes. Skips pieces that are the same memory.
  void CopyTo(const FlatView& other) const {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].iov_base == other.pieces_[i].iov_base || pieces_[i].iov_len == 0) continue;
      std::memcpy(other.pieces_[i].iov_base, pieces_[i].iov_base, pieces_[i].iov_len);
    }
  }

  // Appends the pieces of bytes [begin, end) to `out`, without empty ones.
  void Slice(size_t begin, size_t end, std::vector<iovec>* out) const {
    if (begin >= end) return;
    size_t i = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                   begins_.begin()) -
               1;
    for (; i < pieces_.size() && begins_[i] < end; ++i) {
      const size_t from = std::max(begin, begins_[i]) - begins_[i];
      const size_t to = std::min(end - begins_[i], pieces_[i].iov_len);
      if (from < to) out->push_back({static_cast<char*>(pieces_[i].iov_base) + from, to - from});
    }
  }

 private:
  std::vector<iovec> pieces_;
  std::vector<size_t> begins_;  // flat offset at which each piece begins
  size_t bytes_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_FLAT_VIEW_H_
