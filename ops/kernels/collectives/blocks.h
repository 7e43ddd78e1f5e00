// Tensors that are cut by rows into one part for each rank, seen rank by rank:
//
//     tensor a   a0 | a1 a1 | a2
//     tensor b   b0 b0 | b1 | b2
//     blocks     a0 b0 b0 | a1 a1 b1 | a2 b2
//
// so that what belongs to a rank is one block, however many tensors there are.
#ifndef TFDIST_OPS_KERNELS_COLLECTIVES_BLOCKS_H_
#define TFDIST_OPS_KERNELS_COLLECTIVES_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/flat_view.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// Rows of each of several tensors, by rank.
class Rows {
 public:
  Rows(int ranks, int tensors)
      : tensors_(tensors), counts_(static_cast<size_t>(ranks) * tensors, 0) {}

  int ranks() const { return tensors_ == 0 ? 0 : static_cast<int>(counts_.size()) / tensors_; }
  int tensors() const { return tensors_; }
  int64_t& at(int rank, int tensor) {
    return counts_[static_cast<size_t>(rank) * tensors_ + tensor];
  }
  int64_t at(int rank, int tensor) const {
    return counts_[static_cast<size_t>(rank) * tensors_ + tensor];
  }
  int64_t Total(int tensor) const;

  // Rank by rank, as they lie in memory.
  int64_t* data() { return counts_.data(); }
  size_t bytes() const { return counts_.size() * sizeof(int64_t); }
  // The bytes that one rank's counts have.
  size_t line_bytes() const { return tensors_ * sizeof(int64_t); }

  // Shares `total` rows of a tensor out equally; the first ranks get one row more where they do not
  // divide.
  void Share(int tensor, int64_t total);

  // Takes the counts from an op's input of shape [ranks, tensors].
  absl::Status Read(const tensorflow::Tensor& input, const std::string& label);
  void Write(tensorflow::Tensor* output) const;

  // Whether all counts are possible, and those of each tensor add up to the rows that it has.
  absl::Status CheckTotals(const std::vector<const tensorflow::Tensor*>& inputs,
                           const std::string& label) const;
  // Whether all counts, which other ranks have sent, are possible.
  absl::Status CheckReceived(const std::string& label) const;

 private:
  int tensors_;
  std::vector<int64_t> counts_;
};

// The bytes of one row.
size_t RowBytes(const tensorflow::Tensor& tensor);

// Bytes of every rank's block of tensors like these, of whatever number of rows.
std::vector<size_t> BlockBytes(const std::vector<const tensorflow::Tensor*>& like,
                               const Rows& rows);

// The tensors' memory, block by block. They have as many rows as `rows` says in all.
FlatView Blocks(const std::vector<const tensorflow::Tensor*>& tensors, const Rows& rows);

// The tensors' memory, one tensor after the other.
FlatView Whole(const std::vector<const tensorflow::Tensor*>& tensors);

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_COLLECTIVES_BLOCKS_H_
