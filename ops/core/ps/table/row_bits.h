// A set of rows.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_BITS_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_BITS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/ps/table/row_map.h"

namespace tfdist::ps {

// One bit for each row.
class RowBits {
 public:
  RowBits() = default;
  explicit RowBits(std::vector<uint64_t> words) : words_(std::move(words)) {}

  // Allocates for the rows below `rows`: Set needs no memory for them.
  void Cover(size_t rows) {
    const size_t words = (rows + 63) / 64;
    if (words > words_.size()) words_.resize(words);
  }
  bool Get(uint32_t row) const {
    return row / 64 < words_.size() && (words_[row / 64] >> row % 64 & 1) != 0;
  }
  void Set(uint32_t row) {
    if (row / 64 >= words_.size()) words_.resize(row / 64 + 1);
    words_[row / 64] |= uint64_t{1} << row % 64;
  }
  void Clear(uint32_t row) {
    if (row / 64 < words_.size()) words_[row / 64] &= ~(uint64_t{1} << row % 64);
  }
  // The first row from `row` on that is set; RowMap::kNone if there is none.
  uint32_t Next(uint32_t row) const {
    for (size_t word = row / 64; word < words_.size(); ++word) {
      const uint64_t rest =
          word == row / 64 ? words_[word] & ~uint64_t{0} << row % 64 : words_[word];
      if (rest != 0) return static_cast<uint32_t>(word * 64 + __builtin_ctzll(rest));
    }
    return RowMap::kNone;
  }
  size_t bytes() const { return words_.capacity() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_BITS_H_
