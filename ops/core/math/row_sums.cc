#include "core/math/row_sums.h"

#include <cstring>

#include "core/math/cast16.h"

namespace tfdist {

int64_t DenseTableRows(const std::vector<RowCount>& ranks, size_t row_bytes, size_t id_bytes,
                       size_t element_bytes) {
  const int64_t table_rows = ranks.front().table_rows;
  if (element_bytes == 1 && ranks.size() > 255) return -1;  // a count of 256 ranks is 0
  uint64_t rows = 0;
  for (const RowCount& rank : ranks) {
    if (rank.table_rows < 0 || rank.table_rows != table_rows) return -1;
    rows += rank.ids;
  }
  const uint64_t as_rows = rows * (row_bytes + id_bytes);
  const uint64_t as_table = 2 * table_rows * (row_bytes + element_bytes);
  return as_rows > as_table ? table_rows : -1;
}

void RowSums::Add(const char* rows, const uint32_t* indices, size_t count) {
  const size_t bytes = width_ * ByteSize(dtype_);
  for (size_t i = 0; i < count; ++i, rows += bytes) {
    char* const sum = sums_ + indices[i] * bytes;
    if (indices[i] == known_) {
      if (bytes > 0) std::memcpy(sum, rows, bytes);
      ++known_;
    } else {
      tfdist::Add(dtype_, sum, sum, rows, width_);
    }
  }
}

void SetOne(DType dtype, void* element) {
  switch (dtype) {
    case DType::kFloat64: {
      const double one = 1;
      std::memcpy(element, &one, sizeof(one));
      break;
    }
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16: {
      const float one = 1;
      CastFromFloat32(dtype, &one, element, 1);
      break;
    }
    default:  // a little-endian integer
      std::memset(element, 0, ByteSize(dtype));
      *static_cast<char*>(element) = 1;
  }
}

}  // namespace tfdist
