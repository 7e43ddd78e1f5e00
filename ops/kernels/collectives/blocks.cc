#include "kernels/collectives/blocks.h"

#include <algorithm>
#include <limits>

#include "core/base/status.h"
#include "kernels/conversions.h"

namespace tfdist {

using ::tensorflow::Tensor;

int64_t RowsByRank::Total(int tensor) const {
  int64_t total = 0;
  for (int rank = 0; rank < ranks(); ++rank) total += at(rank, tensor);
  return total;
}

void RowsByRank::Share(int tensor, int64_t total) {
  const int64_t size = ranks();
  for (int rank = 0; rank < size; ++rank) {
    at(rank, tensor) = total / size + (rank < total % size ? 1 : 0);
  }
}

absl::Status RowsByRank::Read(const Tensor& input, const std::string& label) {
  if (input.dims() != 2 || input.dim_size(0) != ranks() || input.dim_size(1) != tensors_) {
    return absl::InvalidArgumentError(
        StrCat("'", label, "': expected the rows of ", tensors_, " tensors for each of ", ranks(),
               " ranks, received shape ", input.shape().DebugString()));
  }
  std::copy_n(input.flat<int64_t>().data(), counts_.size(), counts_.begin());
  return absl::OkStatus();
}

void RowsByRank::Write(Tensor* output) const {
  std::copy(counts_.begin(), counts_.end(), output->flat<int64_t>().data());
}

absl::Status RowsByRank::CheckTotals(const std::vector<const Tensor*>& inputs,
                                     const std::string& label) const {
  for (int i = 0; i < tensors_; ++i) {
    std::string shown;
    int64_t left = inputs[i]->dim_size(0);
    bool possible = true;
    for (int rank = 0; rank < ranks(); ++rank) {
      shown += StrCat(rank == 0 ? "" : ", ", at(rank, i));
      possible = possible && at(rank, i) >= 0 && at(rank, i) <= left;
      if (possible) left -= at(rank, i);
    }
    if (possible && left == 0) continue;
    return absl::InvalidArgumentError(StrCat(
        "'", label, "': expected numbers of rows for ", ranks(), " ranks that add up to the ",
        inputs[i]->dim_size(0), " rows of tensor ", i, ", received [", shown, "]"));
  }
  return absl::OkStatus();
}

absl::Status RowsByRank::CheckReceived(const std::string& label) const {
  constexpr int64_t kMaxRows = std::numeric_limits<int64_t>::max() / 2;
  for (int i = 0; i < tensors_; ++i) {
    int64_t total = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (at(rank, i) < 0 || at(rank, i) > kMaxRows - total) {
        return absl::InternalError(
            StrCat("'", label, "': received a number of ", at(rank, i), " rows from rank ", rank));
      }
      total += at(rank, i);
    }
  }
  return absl::OkStatus();
}

size_t RowBytes(const Tensor& tensor) {
  size_t bytes = tensorflow::DataTypeSize(tensor.dtype());
  for (int d = 1; d < tensor.dims(); ++d) bytes *= static_cast<size_t>(tensor.dim_size(d));
  return bytes;
}

std::vector<size_t> BlockBytes(const std::vector<const Tensor*>& like, const RowsByRank& rows) {
  std::vector<size_t> bytes(rows.ranks(), 0);
  for (int i = 0; i < rows.tensors(); ++i) {
    const size_t row_bytes = RowBytes(*like[i]);
    for (int rank = 0; rank < rows.ranks(); ++rank) bytes[rank] += rows.at(rank, i) * row_bytes;
  }
  return bytes;
}

FlatView Blocks(const std::vector<const Tensor*>& tensors, const RowsByRank& rows) {
  std::vector<char*> next(tensors.size());
  std::vector<size_t> row_bytes(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    next[i] = static_cast<char*>(tensors[i]->data());
    row_bytes[i] = RowBytes(*tensors[i]);
  }
  std::vector<iovec> pieces;
  pieces.reserve(tensors.size() * rows.ranks());
  for (int rank = 0; rank < rows.ranks(); ++rank) {
    for (int i = 0; i < rows.tensors(); ++i) {
      const size_t bytes = rows.at(rank, i) * row_bytes[i];
      pieces.push_back({next[i], bytes});
      next[i] += bytes;
    }
  }
  return FlatView(std::move(pieces));
}

FlatView Whole(const std::vector<const Tensor*>& tensors) {
  std::vector<iovec> pieces;
  pieces.reserve(tensors.size());
  for (const Tensor* tensor : tensors) pieces.push_back(Memory(*tensor));
  return FlatView(std::move(pieces));
}

}  // namespace tfdist
