#include "core/ps/client/lookups/lookup_operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/math/cast16.h"

namespace tfdist::ps {
namespace {

// The mean number of adjacent rows from which rows are received without a copy: each run of them
// costs the kernel about as much as the copies of a few rows.
constexpr size_t kDirectReadRun = 8;

size_t CountRuns(const std::vector<float*>& rows, const std::vector<uint32_t>& indices,
                 size_t width) {
  size_t runs = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    runs += i == 0 || rows[indices[i]] != rows[indices[i - 1]] + width ? 1 : 0;
  }
  return runs;
}

void AppendRuns(const std::vector<float*>& rows, const std::vector<uint32_t>& indices, size_t width,
                std::vector<iovec>* runs) {
  const float* end = nullptr;
  for (const uint32_t index : indices) {
    if (rows[index] != end) runs->push_back({rows[index], 0});
    runs->back().iov_len += width * sizeof(float);
    end = rows[index] + width;
  }
}

}  // namespace

LookupOperation::LookupOperation(const TableDirectory* directory, BlockPool* pool,
                                 const RowCaches* caches, uint64_t step,
                                 std::vector<TableLookup> lookups, bool training, Done done)
    : Operation(Kind::kOther, StrCat("a lookup in ", lookups.size(), " tables")),
      directory_(directory),
      pool_(pool),
      step_(step),
      training_(training),
      lookups_(std::move(lookups)),
      done_(std::move(done)),
      received_(directory->servers()) {
  for (const TableLookup& lookup : lookups_) Add(lookup, &GroupOf(lookup, caches));
  for (Group& group : groups_) RequestMissing(&group);
}

LookupOperation::Group& LookupOperation::GroupOf(const TableLookup& lookup,
                                                 const RowCaches* caches) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
    return group.table == lookup.table && group.wire == lookup.wire;
  });
  if (found != groups_.end()) return *found;
  Mention(directory_->name(lookup.table));
  Group group;
  group.table = lookup.table;
  group.wire = lookup.wire;
  group.width = directory_->config(lookup.table).width;
  if (caches != nullptr) group.cache = caches->Find(lookup.table);
  if (group.cache != nullptr) group.cache_edition = group.cache->edition();
  groups_.push_back(std::move(group));
  return groups_.back();
}

void LookupOperation::Add(const TableLookup& lookup, Group* group) {
  const size_t before = group->unique.indices().size();
  group->unique.Add(lookup.ids.data(), lookup.ids.size());
  const uint32_t* const indices = group->unique.indices().data() + before;
  auto* row = reinterpret_cast<float*>(lookup.rows.data);
  for (size_t i = 0; i < lookup.ids.size(); ++i, row += group->width) {
    // A new id has the next index.
    if (indices[i] == group->rows.size()) {
      group->rows.push_back(row);
    } else {
      group->repeats.push_back({indices[i], row});
    }
  }
  counts_.ids += lookup.ids.size();
}

void LookupOperation::RequestMissing(Group* group) {
  const std::vector<int64_t>& ids = group->unique.ids();
  if (group->cache != nullptr) {
    group->cache->Get(ids, group->rows, step_, &group->missing);
    counts_.cache_lookups += ids.size();
    counts_.cache_hits += ids.size() - group->missing.size();
  } else {
    group->missing.resize(ids.size());
    std::iota(group->missing.begin(), group->missing.end(), 0);
  }
  const int servers = directory_->servers();
  group->parts.resize(servers);
  std::vector<std::shared_ptr<std::vector<int64_t>>> missing_ids(servers);
  for (auto& one : missing_ids) one = std::make_shared<std::vector<int64_t>>();
  for (const uint32_t index : group->missing) {
    const int server = ServerOfId(ids[index], servers);
    missing_ids[server]->push_back(ids[index]);
    group->parts[server].indices.push_back(index);
  }
  for (int server = 0; server < servers; ++server) {
    Part& part = group->parts[server];
    if (part.indices.empty()) continue;
    part.direct = group->wire == DType::kFloat32 &&
                  kDirectReadRun * CountRuns(group->rows, part.indices, group->width) <=
                      std::max(part.indices.size(), kDirectReadRun);
    // The request may outlive this operation.
    Append(&To(server, MessageType::kLookup), missing_ids[server]->data(),
           missing_ids[server]->size() * sizeof(int64_t), missing_ids[server]);
  }
}

Status LookupOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  LookupRequest message;
  message.training = training_;
  for (const Group& group : groups_) {
    const size_t count = group.parts[request.server].indices.size();
    if (count == 0) continue;
    message.entries.push_back({0, count, group.wire});
    uint32_t* const id = &message.entries.back().table;
    if (Status s = directory_->FindTableId(request.server, group.table, id); !s.ok()) return s;
  }
  *meta = Encode(message);
  return Status();
}

Status LookupOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                 uint64_t payload_bytes, std::vector<iovec>* target) {
  size_t bytes = 0, buffered = 0;
  for (const Group& group : groups_) {
    const Part& part = group.parts[request.server];
    bytes += group.BytesOf(part);
    if (!part.direct) buffered += group.BytesOf(part);
  }
  if (!meta.empty() || payload_bytes != bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected rows of ", bytes, " bytes, received ", payload_bytes));
  }
  BlockPtr& received = received_[request.server];
  if (buffered > 0) received = pool_->AllocateAtLeast(buffered);
  char* next = buffered > 0 ? received->data() : nullptr;
  for (Group& group : groups_) {
    Part& part = group.parts[request.server];
    if (part.direct) {
      AppendRuns(group.rows, part.indices, group.width, target);
    } else if (!part.indices.empty()) {
      part.received = next;
      target->push_back({next, group.BytesOf(part)});
      next += group.BytesOf(part);
    }
  }
  return Status();
}

Status LookupOperation::OnPayload(const Request& request) {
  for (const Group& group : groups_) {
    const Part& part = group.parts[request.server];
    counts_.rows += part.indices.size();
    counts_.bytes += group.BytesOf(part);
    if (part.direct) continue;
    const size_t row_bytes = group.width * ByteSize(group.wire);
    const char* from = part.received;
    for (const uint32_t index : part.indices) {
      CastToFloat32(group.wire, from, group.rows[index], group.width);
      from += row_bytes;
    }
  }
  received_[request.server].reset();
  return Status();
}

void LookupOperation::OnEnd(const Status& status) {
  for (const Group& group : groups_) {
    if (!status.ok()) break;
    for (const Repeat& repeat : group.repeats) {
      std::memcpy(repeat.row, group.rows[repeat.index], group.width * sizeof(float));
    }
    if (group.cache != nullptr) {
      group.cache->Put(group.unique.ids(), group.rows, group.missing, step_, group.cache_edition);
    }
  }
  std::exchange(done_, nullptr)(status, counts_);
}

}  // namespace tfdist::ps
