// Tensors cut by rows into one part for each rank, arranged by rank:
//
//     tensor a   a0 | a1 a1 | a2
//     tensor b   b0 b0 | b1 | b2
//     blocks     a0 b0 b0 | a1 a1 b1 | a2 b2
//
// so that the parts of a rank are one block, for any number of tensors.
#ifndef TFDIST_OPS_KERNELS_COLLECTIVES_BLOCKS_H_
#define TFDIST_OPS_KERNELS_COLLECTIVES_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/flat_view.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// The number of rows of each tensor on each rank, or for each rank.
class RowsByRank {
 public:
  RowsByRank(int ranks, int tensors)
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

  // The counts in memory, rank by rank.
  int64_t* data() { return counts_.data(); }
  size_t bytes() const { return counts_.size() * sizeof(int64_t); }
  // Bytes of the counts of one rank.
  size_t rank_bytes() const { return tensors_ * sizeof(int64_t); }

  // Divides `total` rows of a tensor equally; the first ranks get one more row each if there is a
  // remainder.
  void Share(int tensor, int64_t total);

  // Reads the counts from an op's input of shape [ranks, tensors].
  absl::Status Read(const tensorflow::Tensor& input, const std::string& label);
  void Write(tensorflow::Tensor* output) const;

  // Checks that the counts of each tensor are not negative and add up to its rows.
  absl::Status CheckTotals(const std::vector<const tensorflow::Tensor*>& inputs,
                           const std::string& label) const;
  // Checks that counts received from other ranks are not negative and their sums do not overflow.
  absl::Status CheckReceived(const std::string& label) const;

 private:
  int tensors_;
  std::vector<int64_t> counts_;
};

// The bytes of one row.
size_t RowBytes(const tensorflow::Tensor& tensor);

// Bytes of each rank's block. `like` gives the bytes of a row of each tensor.
std::vector<size_t> BlockBytes(const std::vector<const tensorflow::Tensor*>& like,
                               const RowsByRank& rows);

// The tensors' memory, block by block. Tensor i has rows.Total(i) rows.
FlatView Blocks(const std::vector<const tensorflow::Tensor*>& tensors, const RowsByRank& rows);

// The tensors' memory, tensor by tensor.
FlatView Whole(const std::vector<const tensorflow::Tensor*>& tensors);

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_COLLECTIVES_BLOCKS_H_
