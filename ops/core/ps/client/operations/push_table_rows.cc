// The part of a push that is gradients of tables' rows.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/math/cast16.h"
#include "core/math/unique_ids.h"
#include "core/ps/client/operations/push_operation.h"
#include "core/ps/table/ids_by_server.h"

namespace tfdist::ps {
namespace {

// Rows that lie one behind the other, on average, for them to be sent from where they are.
constexpr size_t kDirectSendRun = 8;

// The gradient of each id: where it is if the id occurs once, else the sum, which `owners` keep.
class SummedRows {
 public:
  SummedRows(const std::vector<const RowGradient*>& gradients, size_t width, BlockPool* pool)
      : width_(width) {
    for (const RowGradient* gradient : gradients) {
      unique_.Add(gradient->ids.data(), gradient->ids.size());
      owners_.push_back(gradient->values.owner);
    }
    rows_.resize(unique_.ids().size());
    std::vector<bool> repeats(rows_.size());
    size_t first = 0, repeated = 0;
    for (const uint32_t place : unique_.indices()) {
      if (place == first) {
        ++first;
      } else if (!repeats[place]) {
        repeats[place] = true;
        ++repeated;
      }
    }
    BlockPtr sums = pool->AllocateAtLeast(repeated * width * sizeof(float));
    auto* next_sum = reinterpret_cast<float*>(sums->data());
    owners_.push_back(std::move(sums));
    const uint32_t* place = unique_.indices().data();
    for (const RowGradient* gradient : gradients) {
      const auto* values = reinterpret_cast<const float*>(gradient->values.data);
      for (size_t i = 0; i < gradient->ids.size(); ++i, ++place, values += width) {
        const float*& row = rows_[*place];
        if (row != nullptr) {
          auto* const sum = const_cast<float*>(row);
          for (size_t j = 0; j < width; ++j) sum[j] += values[j];
        } else if (repeats[*place]) {
          std::copy_n(values, width, next_sum);
          row = next_sum;
          next_sum += width;
        } else {
          row = values;
        }
      }
    }
  }

  const std::vector<int64_t>& ids() const { return unique_.ids(); }
  const float* row(uint32_t place) const { return rows_[place]; }
  // Whether `place` comes right behind the one before.
  bool Follows(uint32_t before, uint32_t place) const {
    return rows_[place] == rows_[before] + width_;
  }

 private:
  const size_t width_;
  UniqueIds unique_;
  std::vector<const float*> rows_;
  std::vector<std::shared_ptr<void>> owners_;
};

}  // namespace

Status PushOperation::AddTableRows(const StepValues& step,
                                   const std::vector<const RowGradient*>& gradients) {
  const int table = gradients.front()->table;
  const DType wire = gradients.front()->wire;
  const size_t width = directory_->config(table).width, row_bytes = width * ByteSize(wire);
  uint8_t index = 0;
  if (Status s = StepIndex(step, &index); !s.ok()) return s;
  const auto sums = std::make_shared<SummedRows>(gradients, width, pool_);
  std::vector<IdsByServer::Part> parts = IdsByServer(sums->ids(), directory_->servers()).parts;
  for (int server = 0; server < directory_->servers(); ++server) {
    const std::vector<uint32_t>& places = parts[server].indices;
    if (places.empty()) continue;
    PushRequest::Entry entry;
    entry.kind = UpdateKind::kTableRows;
    entry.step = index;
    entry.rows = places.size();
    entry.width = width;
    entry.wire = wire;
    parts_[server].shards.push_back({table, 0});
    parts_[server].entries.push_back(entry);
    ++entries_;
    auto ids = std::make_shared<std::vector<int64_t>>(std::move(parts[server].ids));
    AddPayload(server, ids->data(), ids->size() * sizeof(int64_t), ids);
    std::vector<size_t> runs;  // where each ends
    for (size_t i = 1; i <= places.size(); ++i) {
      if (i == places.size() || !sums->Follows(places[i - 1], places[i])) runs.push_back(i);
    }
    if (wire == DType::kFloat32 && runs.size() * kDirectSendRun <= places.size()) {
      size_t begin = 0;
      for (const size_t end : runs) {
        AddPayload(server, sums->row(places[begin]), (end - begin) * row_bytes, sums);
        begin = end;
      }
      continue;
    }
    const BlockPtr rows = pool_->AllocateAtLeast(places.size() * row_bytes);
    char* to = rows->data();
    for (const uint32_t place : places) {
      CastFromFloat32(wire, sums->row(place), to, width);
      to += row_bytes;
    }
    AddPayload(server, rows->data(), rows->bytes(), rows);
  }
  return Status();
}

}  // namespace tfdist::ps
