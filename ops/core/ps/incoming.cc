#include "core/ps/incoming.h"

#include <utility>

namespace tfdist::ps {
namespace {

// The parts of a payload, and how large they are together.
class Layout {
 public:
  void AddShard(const Shard& shard) { Add(shard.bytes, true); }
  // `elements` as the sender says.
  void AddClaimed(DType dtype, uint64_t elements) {
    const std::optional<uint64_t> bytes = BytesOf(dtype, elements);
    if (!bytes) {
      too_large_ = true;
    } else {
      Add(*bytes, false);
    }
  }
  // The parts, if they make up the payload.
  Status Finish(const MessageHeader& header, Incoming* request) {
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

Status NoSuchShard(uint32_t number) {
  return InvalidArgument(StrCat("there is no shard ", number, "; it was never created here"));
}

Status LayOut(const MessageHeader& header, const CreateRequest& body, const Store&,
              Incoming* request) {
  Layout layout;
  for (const CreateRequest::Entry& entry : body.entries) {
    if (entry.has_value) layout.AddClaimed(entry.dtype, entry.elements);
  }
  return layout.Finish(header, request);
}

// Whether this may be done to the shard.
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

// A gradient of a table's rows. What does not fit is refused; what would be too large fails.
Status CheckTableRows(const PushRequest::Entry& entry, const Store& store) {
  const Table* const table = store.FindTable(entry.shard);
  if (table == nullptr) return InvalidArgument(StrCat("there is no table ", entry.shard));
  if (entry.width != table->config().width) {
    return InvalidArgument(StrCat("a table of rows of ", table->config().width,
                                  " elements received gradients of ", entry.width));
  }
  return Status();
}

Status LayOut(const MessageHeader& header, const LookupRequest& body, const Store& store,
              Incoming* request) {
  Layout layout;
  uint64_t answer_bytes = 0;
  for (const LookupRequest::Entry& entry : body.entries) {
    layout.AddClaimed(DType::kInt64, entry.count);
    const Table* const table = store.FindTable(entry.table);
    if (table == nullptr) {
      request->refusal =
          InvalidArgument(StrCat("there is no table ", entry.table, " to look up in"));
    } else if (entry.count <= kMaxPayloadBytes / sizeof(int64_t)) {
      answer_bytes += entry.count * table->config().width * ByteSize(entry.wire);
    }
  }
  if (answer_bytes > kMaxPayloadBytes) {
    request->refusal =
        InvalidArgument(StrCat("a lookup of more than ", kMaxPayloadBytes, " bytes"));
  }
  return layout.Finish(header, request);
}

Status LayOut(const MessageHeader& header, const DumpRequest& body, const Store& store,
              Incoming* request) {
  if (store.FindTable(body.table) == nullptr) {
    request->refusal = InvalidArgument(StrCat("there is no table ", body.table, " to dump"));
  }
  return Layout().Finish(header, request);
}

Status LayOut(const MessageHeader& header, const AssignRowsRequest& body, const Store& store,
              Incoming* request) {
  const Table* const table = store.FindTable(body.table);
  if (table == nullptr) {
    request->refusal =
        InvalidArgument(StrCat("there is no table ", body.table, " to put rows into"));
  } else {
    const size_t floats = body.slots ? table->content_floats() : table->config().width;
    if (body.floats != floats) {
      request->refusal = InvalidArgument(StrCat("table '", table->name(), "': expected rows of ",
                                                floats, " numbers, received ", body.floats));
    }
  }
  Layout layout;
  layout.AddClaimed(DType::kInt64, body.rows);
  if (body.slots) {
    layout.AddClaimed(DType::kInt32, body.rows);
    layout.AddClaimed(DType::kInt32, body.rows);
  }
  const bool fits = body.floats == 0 || body.rows <= kMaxPayloadBytes / body.floats;
  layout.AddClaimed(DType::kFloat32, fits ? body.rows * body.floats : UINT64_MAX);
  return layout.Finish(header, request);
}

Status LayOut(const MessageHeader& header, const PushRequest& body, const Store& store,
              Incoming* request) {
  Layout layout;
  for (const PushRequest::Entry& entry : body.entries) {
    if (entry.kind == UpdateKind::kTableRows) {
      if (request->refusal.ok()) request->refusal = CheckTableRows(entry, store);
      layout.AddClaimed(DType::kInt64, entry.rows);
      const bool fits = entry.width == 0 || entry.rows <= kMaxPayloadBytes / entry.width;
      layout.AddClaimed(entry.wire, fits ? entry.rows * entry.width : UINT64_MAX);
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
      const bool fits = entry.width == 0 || entry.rows <= kMaxPayloadBytes / entry.width;
      layout.AddClaimed(shard->dtype, fits ? entry.rows * entry.width : UINT64_MAX);
    } else {
      layout.AddShard(*shard);
    }
  }
  return layout.Finish(header, request);
}

Status LayOut(const MessageHeader& header, const SetRequest& body, const Store& store,
              Incoming* request) {
  Layout layout;
  for (const uint32_t number : body.shards) {
    const Shard* shard = store.Find(number);
    if (shard == nullptr) {
      request->refusal = NoSuchShard(number);
      return Status();
    }
    layout.AddShard(*shard);
  }
  return layout.Finish(header, request);
}

Status LayOut(const MessageHeader& header, const ReduceRequest& body, const Store&,
              Incoming* request) {
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

// Of requests without values.
template <typename Body>
Status LayOut(const MessageHeader& header, const Body&, const Store&, Incoming* request) {
  return Layout().Finish(header, request);
}

Status Decode(std::string_view meta, LeaveRequest*) {
  return meta.empty() ? Status() : InvalidArgument("malformed LEAVE request");
}

template <typename Body>
Status ParseAs(const MessageHeader& header, std::string_view meta, const Store& store,
               Incoming* request) {
  Body body;
  if (Status s = Decode(meta, &body); !s.ok()) return s;
  const auto sharing = store.Share();
  const Status status = LayOut(header, body, store, request);
  request->body = std::move(body);
  return status;
}

}  // namespace

Status Parse(const MessageHeader& header, std::string_view meta, const Store& store,
             Incoming* request) {
  *request = Incoming();
  request->number = header.number;
  switch (header.type) {
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
    case MessageType::kReduce:
      return ParseAs<ReduceRequest>(header, meta, store, request);
    case MessageType::kLeave:
      return ParseAs<LeaveRequest>(header, meta, store, request);
    case MessageType::kTable:
      return ParseAs<TableRequest>(header, meta, store, request);
    case MessageType::kLookup:
      return ParseAs<LookupRequest>(header, meta, store, request);
    case MessageType::kDump:
      return ParseAs<DumpRequest>(header, meta, store, request);
    case MessageType::kAssignRows:
      return ParseAs<AssignRowsRequest>(header, meta, store, request);
    case MessageType::kLend:
    case MessageType::kCopied:  // these are the session's
    case MessageType::kOk:
    case MessageType::kError:
    case MessageType::kResend:
      break;
  }
  return InvalidArgument(
      StrCat("expected a request, received a message of type ", static_cast<int>(header.type)));
}

}  // namespace tfdist::ps
