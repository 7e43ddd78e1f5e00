#include "core/ps/server/request.h"

#include <type_traits>
#include <utility>

#include "core/base/checked_size.h"

namespace tfdist::ps {
namespace {

// The parts of a payload, and their total size.
class Layout {
 public:
  void AddShard(const Shard& shard) { Add(shard.bytes, true); }
  // `elements` is the sender's claim.
  void AddClaimed(DType dtype, CheckedSize elements) {
    const CheckedSize bytes = elements * ByteSize(dtype);
    if (!bytes.IsAtMost(kMaxPayloadBytes)) {
      too_large_ = true;
    } else {
      Add(*bytes.value(), false);
    }
  }
  // Gives the request its parts. Fails if they do not add up to the payload's size.
  Status Finish(const FrameHeader& header, ClientRequest* request) {
    if (too_large_ || bytes_ != header.payload_bytes) {
      return InvalidArgument(StrCat("a request with ", header.payload_bytes,
                                    " bytes of values, expected ",
                                    too_large_ ? kMaxPayloadBytes : bytes_));
    }
    if (request->refusal.ok()) request->parts = std::move(parts_);
    return Status();
  }

 private:
  void Add(uint64_t bytes, bool of_shard) {
    if (bytes > kMaxPayloadBytes - bytes_) too_large_ = true;
    if (too_large_) return;
    bytes_ += bytes;
    parts_.push_back({bytes, of_shard});
  }

  std::vector<PayloadPart> parts_;
  uint64_t bytes_ = 0;
  bool too_large_ = false;
};

Status NoSuchShard(uint32_t id) {
  return InvalidArgument(StrCat("there is no shard ", id, "; it was never created here"));
}

Status LayOut(const FrameHeader& header, const CreateRequest& body, const Store& store,
              ClientRequest* request) {
  Layout layout;
  uint64_t fresh_bytes = 0;
  for (const CreateRequest::Entry& entry : body.entries) {
    if (!entry.has_value) continue;
    layout.AddClaimed(entry.dtype, entry.elements);
    if (!store.Has(entry.name)) fresh_bytes += BytesOf(entry.dtype, entry.elements).value_or(0);
  }
  const Status status = layout.Finish(header, request);
  if (status.ok()) store.memory().Check(fresh_bytes, MemoryUse::kPersistent);
  return status;
}

// Fails if the update does not suit the shard.
Status CheckUpdate(const PushRequest::Entry& entry, const Shard& shard) {
  const auto wrong = [&shard](const std::string& what) {
    return InvalidArgument(
        StrCat("shard '", shard.name, "' (", Describe(shard.dtype, shard.elements), ") ", what));
  };
  switch (entry.kind) {
    case UpdateKind::kAssign:
      return Status();
    case UpdateKind::kDelta:
      if (shard.dtype != DType::kBytes) return Status();
      return wrong("has no numbers to add to");
    case UpdateKind::kRows:
      if (entry.width == 0 || shard.elements % entry.width != 0) {
        return wrong(StrCat("has no rows of ", entry.width, " elements"));
      }
      break;
    case UpdateKind::kGradient:
    case UpdateKind::kTableRows:
      break;
  }
  if (shard.binding.has_value()) return Status();
  return wrong("received a gradient, but no optimizer was bound to it");
}

// The table of a request, which holds it from now on. Null if there is none: then the request is
// refused.
const Table* FindFor(const Store& store, uint32_t id, const char* purpose, ClientRequest* request) {
  const std::shared_ptr<Table>& table = store.HoldTable(id);
  if (table == nullptr) {
    request->refusal = InvalidArgument(StrCat("there is no table ", id, purpose));
  } else {
    request->tables.push_back({id, table});
  }
  return table.get();
}

// Fails if a gradient does not suit its table.
Status CheckTableRows(const PushRequest::Entry& entry, const Store& store, ClientRequest* request) {
  const Table* const table = FindFor(store, entry.shard, "", request);
  if (table == nullptr) return request->refusal;
  if (entry.width != table->config().width) {
    return InvalidArgument(StrCat("a table of rows of ", table->config().width,
                                  " elements received gradients of ", entry.width));
  }
  return Status();
}

Status LayOut(const FrameHeader& header, const LookupRequest& body, const Store& store,
              ClientRequest* request) {
  Layout layout;
  CheckedSize answer_bytes;
  request->tables.reserve(body.entries.size());
  for (const LookupRequest::Entry& entry : body.entries) {
    layout.AddClaimed(DType::kInt64, entry.count);
    const Table* const table = FindFor(store, entry.table, " to look up in", request);
    if (table == nullptr) continue;
    answer_bytes += CheckedSize(entry.count) * table->config().width * ByteSize(entry.wire);
  }
  if (!answer_bytes.IsAtMost(kMaxPayloadBytes)) {
    request->refusal =
        InvalidArgument(StrCat("a lookup of more than ", kMaxPayloadBytes, " bytes"));
  }
  const Status status = layout.Finish(header, request);
  if (status.ok() && request->refusal.ok()) {
    store.memory().Admit(header.payload_bytes + *answer_bytes.value());
  }
  return status;
}

Status LayOut(const FrameHeader& header, const ScanRowsRequest& body, const Store& store,
              ClientRequest* request) {
  FindFor(store, body.table, " to dump", request);
  return Layout().Finish(header, request);
}

Status LayOut(const FrameHeader& header, const EditRowsRequest& body, const Store& store,
              ClientRequest* request) {
  const Table* const table = FindFor(store, body.table, " to edit rows of", request);
  const size_t floats = table == nullptr ? body.floats : table->EditFloats(body.kind);
  if (body.floats != floats) {
    request->refusal = InvalidArgument(StrCat("table '", table->name(), "': expected rows of ",
                                              floats, " numbers, received ", body.floats));
  }
  Layout layout;
  layout.AddClaimed(DType::kInt64, body.rows);
  if (body.kind == EditKind::kRestore) {
    layout.AddClaimed(DType::kInt32, body.rows);
    layout.AddClaimed(DType::kInt32, body.rows);
  }
  layout.AddClaimed(DType::kFloat32, CheckedSize(body.rows) * body.floats);
  return layout.Finish(header, request);
}

Status LayOut(const FrameHeader& header, const FindRowsRequest& body, const Store& store,
              ClientRequest* request) {
  const Table* const table = FindFor(store, body.table, " to search", request);
  const uint64_t width = table == nullptr || !body.values ? 0 : table->config().width;
  const CheckedSize answer_bytes = CheckedSize(body.count) * (1 + width * sizeof(float));
  if (!answer_bytes.IsAtMost(kMaxPayloadBytes)) {
    request->refusal = InvalidArgument(StrCat("rows of more than ", kMaxPayloadBytes, " bytes"));
  }
  Layout layout;
  layout.AddClaimed(DType::kInt64, body.count);
  const Status status = layout.Finish(header, request);
  if (status.ok() && request->refusal.ok()) {
    store.memory().Admit(header.payload_bytes + *answer_bytes.value());
  }
  return status;
}

Status LayOut(const FrameHeader& header, const PushRequest& body, const Store& store,
              ClientRequest* request) {
  Layout layout;
  for (const PushRequest::Entry& entry : body.entries) {
    if (entry.kind == UpdateKind::kTableRows) {
      if (request->refusal.ok()) request->refusal = CheckTableRows(entry, store, request);
      layout.AddClaimed(DType::kInt64, entry.rows);
      layout.AddClaimed(entry.wire, CheckedSize(entry.rows) * entry.width);
      continue;
    }
    const Shard* shard = store.Find(entry.shard);
    if (shard == nullptr) {
      request->refusal = NoSuchShard(entry.shard);
      return Status();
    }
    if (request->refusal.ok()) request->refusal = CheckUpdate(entry, *shard);
    if (entry.kind == UpdateKind::kRows) {
      layout.AddClaimed(DType::kInt64, entry.rows);
      layout.AddClaimed(shard->dtype, CheckedSize(entry.rows) * entry.width);
    } else {
      layout.AddShard(*shard);
    }
  }
  return layout.Finish(header, request);
}

// One value for each shard. A request for a shard that does not exist is refused.
Status LayOutShards(const FrameHeader& header, const std::vector<uint32_t>& shards,
                    const Store& store, ClientRequest* request) {
  Layout layout;
  for (const uint32_t id : shards) {
    const Shard* shard = store.Find(id);
    if (shard == nullptr) {
      request->refusal = NoSuchShard(id);
      return Status();
    }
    layout.AddShard(*shard);
  }
  return layout.Finish(header, request);
}

Status LayOut(const FrameHeader& header, const SetRequest& body, const Store& store,
              ClientRequest* request) {
  return LayOutShards(header, body.shards, store, request);
}

Status LayOut(const FrameHeader& header, const ExchangeRequest& body, const Store& store,
              ClientRequest* request) {
  for (const uint32_t id : body.shards) {
    const Shard* shard = store.Find(id);
    if (shard == nullptr || shard->dtype <= DType::kFloat64) continue;
    request->refusal = InvalidArgument(
        StrCat("shard '", shard->name, "': expected floating-point numbers to average, it has ",
               Describe(shard->dtype, shard->elements)));
  }
  if (!(body.alpha > 0 && body.alpha <= 1)) {
    request->refusal = InvalidArgument(
        StrCat("an exchange: expected an elasticity above 0 and at most 1, received ", body.alpha));
  }
  return LayOutShards(header, body.shards, store, request);
}

Status LayOut(const FrameHeader& header, const ReduceRequest& body, const Store&,
              ClientRequest* request) {
  Layout layout;
  for (size_t i = 0; i < body.dtypes.size(); ++i) {
    layout.AddClaimed(body.dtypes[i], body.elements[i]);
    if (body.dtypes[i] == DType::kBytes) {
      request->refusal = InvalidArgument(StrCat("tensor ", i, " of ", body.dtypes.size(),
                                                " of a reduction has no numbers to add up: ",
                                                Describe(body.dtypes[i], body.elements[i])));
    }
  }
  return layout.Finish(header, request);
}

// Requests without values.
template <typename Body>
Status LayOut(const FrameHeader& header, const Body&, const Store&, ClientRequest* request) {
  return Layout().Finish(header, request);
}

Status Decode(std::string_view meta, LeaveRequest*) {
  return meta.empty() ? Status() : InvalidArgument("malformed LEAVE request");
}

template <typename Body>
Status ParseAs(const FrameHeader& header, std::string_view meta, const Store& store,
               ClientRequest* request) {
  Body body;
  if (Status s = Decode(meta, &body); !s.ok()) return s;
  const auto sharing = store.Share();
  request->body = std::move(body);
  try {
    const Status status = LayOut(header, std::get<Body>(request->body), store, request);
    if (!status.ok()) return status;
    // The budget is checked before the payload arrives and is allocated. A variable's first value
    // is kept: it does not count as memory that requests need.
    if constexpr (std::is_same_v<Body, CreateRequest>) {
      store.memory().Check(header.payload_bytes, MemoryUse::kTransient);
    } else {
      store.memory().Admit(header.payload_bytes);
    }
    return status;
  } catch (const OverBudget& error) {
    request->refusal = OutOfMemory(*request, store, error);
    return Status();
  }
}

// Names of tables and variables, such as "table 'a' and 3 more".
class Names {
 public:
  void Add(const char* kind, const std::string& name) {
    if (count_++ == 0) first_ = StrCat(kind, " '", name.substr(0, 64), "'");
  }
  void AddTable(const Store& store, uint32_t id) {
    if (const Table* table = store.FindTable(id)) Add("table", table->name());
  }
  void AddShard(const Store& store, uint32_t id) {
    if (const Shard* shard = store.Find(id)) Add("variable", shard->name);
  }
  std::string text() const {
    return count_ < 2 ? first_ : StrCat(first_, " and ", count_ - 1, " more");
  }

 private:
  std::string first_;
  size_t count_ = 0;
};

// The subject of a request, for an error. Requests that are not listed need little memory.
struct SubjectOf {
  const Store& store;
  Names* names;

  const char* operator()(const CreateRequest& body) const {
    for (const auto& entry : body.entries) {
      if (!store.Has(entry.name)) names->Add("variable", entry.name);
    }
    return "the creation of ";
  }
  const char* operator()(const TableRequest& body) const {
    for (const auto& entry : body.entries) names->Add("table", entry.name);
    return "the creation of ";
  }
  const char* operator()(const PullRequest& body) const {
    for (const auto& entry : body.entries) names->AddShard(store, entry.shard);
    return "a pull of ";
  }
  const char* operator()(const PushRequest& body) const {
    for (const auto& entry : body.entries) {
      if (entry.kind == UpdateKind::kTableRows) {
        names->AddTable(store, entry.shard);
      } else {
        names->AddShard(store, entry.shard);
      }
    }
    return "a push to ";
  }
  const char* operator()(const SetRequest& body) const {
    for (const uint32_t shard : body.shards) names->AddShard(store, shard);
    return "new values of ";
  }
  const char* operator()(const ExchangeRequest& body) const {
    for (const uint32_t shard : body.shards) names->AddShard(store, shard);
    return "an exchange of ";
  }
  const char* operator()(const ReduceRequest& body) const {
    names->Add("key", StrCat(body.key));
    return "a reduction with ";
  }
  const char* operator()(const LookupRequest& body) const {
    for (const auto& entry : body.entries) names->AddTable(store, entry.table);
    return "a lookup in ";
  }
  const char* operator()(const ScanRowsRequest& body) const {
    names->AddTable(store, body.table);
    return "a copy of rows of ";
  }
  const char* operator()(const EditRowsRequest& body) const {
    names->AddTable(store, body.table);
    const bool removes = body.kind == EditKind::kRemove || body.kind == EditKind::kClear;
    return removes ? "a removal of rows of " : "new rows of ";
  }
  const char* operator()(const FindRowsRequest& body) const {
    names->AddTable(store, body.table);
    return "a search in ";
  }
  template <typename Other>
  const char* operator()(const Other&) const {
    return "a request";
  }
};

}  // namespace

Status CheckTables(const ClientRequest& request, const Store& store) {
  for (const CheckedTable& checked : request.tables) {
    const Table* const now = store.FindTable(checked.id);
    if (now == checked.table.get()) continue;
    const Table& then = *checked.table;
    return Status(
        StatusCode::kFailedPrecondition,
        StrCat("table '", then.name(),
               "' was replaced while the request arrived: expected rows of ", then.config().width,
               " numbers and ", then.content_floats() - then.config().width,
               " of slots, as when it began; the table has rows of ", now->config().width, " and ",
               now->content_floats() - now->config().width,
               " of slots now. Nothing was changed: create the table and ask again"));
  }
  return Status();
}

Status OutOfMemory(const ClientRequest& request, const Store& store, const std::bad_alloc& error) {
  Names names;
  const char* const what = std::visit(SubjectOf{store, &names}, request.body);
  if (request.table != nullptr) {
    names = {};
    names.Add("table", *request.table);
  }
  const auto* const over = dynamic_cast<const OverBudget*>(&error);
  return Status(StatusCode::kResourceExhausted,
                StrCat("out of memory: ", what, names.text(), " ",
                       over == nullptr ? "needs more than the system gives" : over->text()));
}

Status Parse(const FrameHeader& header, std::string_view meta, const Store& store,
             ClientRequest* request) {
  *request = ClientRequest();
  request->id = header.key;
  switch (static_cast<MessageType>(header.type)) {
    case MessageType::kOpen:
      return ParseAs<OpenRequest>(header, meta, store, request);
    case MessageType::kCreate:
      return ParseAs<CreateRequest>(header, meta, store, request);
    case MessageType::kBind:
      return ParseAs<BindRequest>(header, meta, store, request);
    case MessageType::kPull:
      return ParseAs<PullRequest>(header, meta, store, request);
    case MessageType::kPush:
      return ParseAs<PushRequest>(header, meta, store, request);
    case MessageType::kSet:
      return ParseAs<SetRequest>(header, meta, store, request);
    case MessageType::kExchange:
      return ParseAs<ExchangeRequest>(header, meta, store, request);
    case MessageType::kReduce:
      return ParseAs<ReduceRequest>(header, meta, store, request);
    case MessageType::kLeave:
      return ParseAs<LeaveRequest>(header, meta, store, request);
    case MessageType::kTable:
      return ParseAs<TableRequest>(header, meta, store, request);
    case MessageType::kLookup:
      return ParseAs<LookupRequest>(header, meta, store, request);
    case MessageType::kScanRows:
      return ParseAs<ScanRowsRequest>(header, meta, store, request);
    case MessageType::kEditRows:
      return ParseAs<EditRowsRequest>(header, meta, store, request);
    case MessageType::kFindRows:
      return ParseAs<FindRowsRequest>(header, meta, store, request);
    case MessageType::kResolve:
      return ParseAs<ResolveRequest>(header, meta, store, request);
    case MessageType::kCommit:
      return ParseAs<CommitRequest>(header, meta, store, request);
    case MessageType::kOk:
    case MessageType::kError:
      break;
  }
  return InvalidArgument(
      StrCat("expected a request, received a message of type ", int{header.type}));
}

}  // namespace tfdist::ps
