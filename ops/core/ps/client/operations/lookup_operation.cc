#include "core/ps/client/operations/lookup_operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/math/cast16.h"
#include "core/ps/table/ids_by_server.h"

namespace tfdist::ps {
namespace {

// Rows of one request that lie one behind the other, on average, for them to be read where they
// belong: each run of them costs the kernel about as much as a few rows' copies.
constexpr size_t kDirectReadRun = 8;

size_t CountRuns(const std::vector<float*>& rows, const std::vector<uint32_t>& places,
                 size_t width) {
  size_t runs = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    runs += i == 0 || rows[places[i]] != rows[places[i - 1]] + width ? 1 : 0;
  }
  return runs;
}

void AppendRuns(const std::vector<float*>& rows, const std::vector<uint32_t>& places, size_t width,
                std::vector<iovec>* runs) {
  const float* end = nullptr;
  for (const uint32_t place : places) {
    if (rows[place] != end) runs->push_back({rows[place], 0});
    runs->back().iov_len += width * sizeof(float);
    end = rows[place] + width;
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
  for (Group& group : groups_) AskFor(&group);
}

LookupOperation::Group& LookupOperation::GroupOf(const TableLookup& lookup,
                                                 const RowCaches* caches) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
    return group.table == lookup.table && group.wire == lookup.wire;
  });
  if (found != groups_.end()) return *found;
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
  const uint32_t* const places = group->unique.indices().data() + before;
  auto* row = reinterpret_cast<float*>(lookup.rows.data);
  for (size_t i = 0; i < lookup.ids.size(); ++i, row += group->width) {
    // Places are counted up as ids occur first.
    if (places[i] == group->rows.size()) {
      group->rows.push_back(row);
    } else {
      group->repeats.push_back({places[i], row});
    }
  }
  counts_.ids += lookup.ids.size();
}

void LookupOperation::AskFor(Group* group) {
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
  std::vector<std::shared_ptr<std::vector<int64_t>>> asked(servers);
  for (auto& one : asked) one = std::make_shared<std::vector<int64_t>>();
  for (const uint32_t place : group->missing) {
    const int server = ServerOfId(ids[place], servers);
    asked[server]->push_back(ids[place]);
    group->parts[server].indices.push_back(place);
  }
  for (int server = 0; server < servers; ++server) {
    Part& part = group->parts[server];
    if (part.indices.empty()) continue;
    part.direct = group->wire == DType::kFloat32 &&
                  kDirectReadRun * CountRuns(group->rows, part.indices, group->width) <=
                      std::max(part.indices.size(), kDirectReadRun);
    // The request may outlive this operation.
    Append(&To(server, MessageType::kLookup), asked[server]->data(),
           asked[server]->size() * sizeof(int64_t), asked[server]);
  }
}

Status LookupOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  LookupRequest message;
  message.training = training_;
  for (const Group& group : groups_) {
    const size_t count = group.parts[request.server].indices.size();
    if (count == 0) continue;
    message.entries.push_back({0, count, group.wire});
    uint32_t* const number = &message.entries.back().table;
    if (Status s = directory_->NumberOf(request.server, group.table, number); !s.ok()) return s;
  }
  *meta = Encode(message);
  return Status();
}

Status LookupOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                 uint64_t payload_bytes, std::vector<iovec>* target) {
  size_t bytes = 0, apart = 0;
  for (const Group& group : groups_) {
    const Part& part = group.parts[request.server];
    bytes += group.BytesOf(part);
    if (!part.direct) apart += group.BytesOf(part);
  }
  if (!meta.empty() || payload_bytes != bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected rows of ", bytes, " bytes, received ", payload_bytes));
  }
  BlockPtr& received = received_[request.server];
  if (apart > 0) received = pool_->AllocateAtLeast(apart);
  char* next = apart > 0 ? received->data() : nullptr;
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
    for (const uint32_t place : part.indices) {
      CastToFloat32(group.wire, from, group.rows[place], group.width);
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
      std::memcpy(repeat.row, group.rows[repeat.place], group.width * sizeof(float));
    }
    if (group.cache != nullptr) {
      group.cache->Put(group.unique.ids(), group.rows, group.missing, step_, group.cache_edition);
    }
  }
  std::exchange(done_, nullptr)(status, counts_);
}

}  // namespace tfdist::ps
