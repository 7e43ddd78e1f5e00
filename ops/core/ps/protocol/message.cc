// The header is in message_header.cc, and the messages about tables are in message_rows.cc.
#include "core/ps/protocol/message.h"

#include <algorithm>

#include "core/ps/protocol/message_fields.h"

namespace tfdist::ps {
namespace {

bool HasRows(UpdateKind kind) {
  return kind == UpdateKind::kRows || kind == UpdateKind::kTableRows;
}

}  // namespace

bool LimitsOfMessages(uint8_t type, FrameLimits* limits) {
  const auto within = [type](MessageType first, MessageType last) {
    return type >= static_cast<uint8_t>(first) && type <= static_cast<uint8_t>(last);
  };
  *limits = {kMaxMetaBytes, kMaxPayloadBytes};
  return within(MessageType::kOpen, MessageType::kFindRows) ||
         within(MessageType::kOk, MessageType::kError);
}

StreamOptions MessageStreamOptions() {
  StreamOptions options;
  options.limits_of = LimitsOfMessages;
  options.buffer_bytes = 64 << 10;
  options.receive_budget = 4 << 20;
  options.min_exposed = 64 << 10;
  options.max_exposed_pieces = 64 << 10;
  options.resend_refused = true;
  return options;
}

std::string Encode(const OpenRequest& request) {
  return Writer().Put(request.process).Put(request.pushes).Take();
}

Status Decode(std::string_view meta, OpenRequest* request) {
  return Reader(meta).Get(&request->process).Get(&request->pushes).Finish("OPEN request");
}

std::string Encode(const OpenReply& reply) {
  return Writer().Put(reply.incarnation).Put(reply.clock).Take();
}

Status Decode(std::string_view meta, OpenReply* reply) {
  return Reader(meta).Get(&reply->incarnation).Get(&reply->clock).Finish("OPEN answer");
}

std::string Encode(const CreateRequest& request) {
  Writer writer;
  writer.Put(Count(request.entries));
  for (const CreateRequest::Entry& entry : request.entries) {
    writer.PutString(entry.name).Put(entry.dtype).Put(entry.elements).Put(entry.has_value);
  }
  return writer.Take();
}

Status Decode(std::string_view meta, CreateRequest* request) {
  Reader reader(meta);
  request->entries.resize(reader.GetCount(sizeof(uint16_t) + 1 + sizeof(uint64_t) + 1));
  for (CreateRequest::Entry& entry : request->entries) {
    GetDType(reader.GetString(&entry.name), &entry.dtype);
    reader.Get(&entry.elements).GetBool(&entry.has_value);
  }
  return reader.Finish("CREATE request");
}

std::string Encode(const CreateReply& reply) {
  Writer writer;
  writer.Put(Count(reply.shards));
  for (const uint32_t shard : reply.shards) writer.Put(shard);
  return writer.Take();
}

Status Decode(std::string_view meta, CreateReply* reply) {
  Reader reader(meta);
  reply->shards.resize(reader.GetCount(sizeof(uint32_t)));
  for (uint32_t& shard : reply->shards) reader.Get(&shard);
  return reader.Finish("CREATE answer");
}

std::string Encode(const BindRequest& request) {
  Writer writer;
  PutConfig(&writer, request.config);
  writer.Put(Count(request.entries));
  for (const BindRequest::Entry& entry : request.entries) {
    writer.Put(entry.shard).Put(entry.weight_decay).Put(Count(entry.slots));
    for (const uint32_t slot : entry.slots) writer.Put(slot);
  }
  return writer.Take();
}

Status Decode(std::string_view meta, BindRequest* request) {
  Reader reader(meta);
  GetConfig(&reader, &request->config);
  request->entries.resize(reader.GetCount(2 * sizeof(uint32_t) + sizeof(double)));
  for (BindRequest::Entry& entry : request->entries) {
    reader.Get(&entry.shard).Get(&entry.weight_decay);
    entry.slots.resize(reader.GetCount(sizeof(uint32_t)));
    for (uint32_t& slot : entry.slots) reader.Get(&slot);
  }
  return reader.Finish("BIND request");
}

std::string Encode(const PullRequest& request) {
  Writer writer;
  writer.Put(request.begins_step).Put(Count(request.entries));
  for (const PullRequest::Entry& entry : request.entries) {
    writer.Put(entry.shard).Put(entry.version);
  }
  return writer.Take();
}

Status Decode(std::string_view meta, PullRequest* request) {
  Reader reader(meta);
  reader.GetBool(&request->begins_step);
  request->entries.resize(reader.GetCount(sizeof(uint32_t) + sizeof(uint64_t)));
  for (PullRequest::Entry& entry : request->entries) {
    reader.Get(&entry.shard).Get(&entry.version);
  }
  return reader.Finish("PULL request");
}

std::string Encode(const PullReply& reply) {
  Writer writer;
  writer.Put(reply.clock).Put(Count(reply.versions));
  for (const uint64_t version : reply.versions) writer.Put(version);
  return writer.Take();
}

Status Decode(std::string_view meta, PullReply* reply) {
  Reader reader(meta);
  reader.Get(&reply->clock);
  reply->versions.resize(reader.GetCount(sizeof(uint64_t)));
  for (uint64_t& version : reply->versions) reader.Get(&version);
  return reader.Finish("PULL answer");
}

std::string Encode(const PushRequest& request) {
  Writer writer;
  writer.Put(request.sequence).Put(request.clock).Put(request.incarnation);
  writer.Put(Count(request.steps));
  for (const StepValues& step : request.steps) writer.Put(step.learning_rate).Put(step.step);
  writer.Put(Count(request.entries));
  for (const PushRequest::Entry& entry : request.entries) {
    writer.Put(entry.shard).Put(entry.kind).Put(entry.step);
    if (HasRows(entry.kind)) writer.Put(entry.rows).Put(entry.width);
    if (entry.kind == UpdateKind::kTableRows) writer.Put(entry.wire);
  }
  return writer.Take();
}

Status Decode(std::string_view meta, PushRequest* request) {
  Reader reader(meta);
  reader.Get(&request->sequence).Get(&request->clock).Get(&request->incarnation);
  request->steps.resize(reader.GetCount(sizeof(double) + sizeof(int64_t)));
  for (StepValues& step : request->steps) reader.Get(&step.learning_rate).Get(&step.step);
  request->entries.resize(reader.GetCount(sizeof(uint32_t) + 2));
  for (PushRequest::Entry& entry : request->entries) {
    reader.Get(&entry.shard);
    reader.GetEnum(&entry.kind, UpdateKind::kGradient, UpdateKind::kTableRows).Get(&entry.step);
    const bool rows = HasRows(entry.kind);
    if (rows) reader.Get(&entry.rows).Get(&entry.width);
    if (entry.kind == UpdateKind::kTableRows) GetWire(reader, &entry.wire);
    const bool gradient = rows || entry.kind == UpdateKind::kGradient;
    if (gradient ? entry.step >= request->steps.size() : entry.step != 0) reader.Fail();
  }
  return reader.Finish("PUSH request");
}

std::string Encode(const PushReply& reply) { return Writer().Put(reply.dropped).Take(); }

Status Decode(std::string_view meta, PushReply* reply) {
  return Reader(meta).GetBool(&reply->dropped).Finish("PUSH answer");
}

std::string Encode(const SetRequest& request) {
  Writer writer;
  writer.Put(Count(request.shards));
  for (const uint32_t shard : request.shards) writer.Put(shard);
  return writer.Take();
}

Status Decode(std::string_view meta, SetRequest* request) {
  Reader reader(meta);
  request->shards.resize(reader.GetCount(sizeof(uint32_t)));
  for (uint32_t& shard : request->shards) reader.Get(&shard);
  return reader.Finish("SET request");
}

// Both lists are of one length; a tensor without a dtype is not there.
std::string Encode(const ReduceRequest& request) {
  Writer writer;
  writer.Put(request.key).Put(request.sequence);
  const size_t count = std::min(request.dtypes.size(), request.elements.size());
  writer.Put(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) writer.Put(request.dtypes[i]).Put(request.elements[i]);
  return writer.Take();
}

Status Decode(std::string_view meta, ReduceRequest* request) {
  Reader reader(meta);
  reader.Get(&request->key).Get(&request->sequence);
  const uint32_t count = reader.GetCount(1 + sizeof(uint64_t));
  request->dtypes.resize(count);
  request->elements.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    GetDType(reader, &request->dtypes[i]).Get(&request->elements[i]);
  }
  return reader.Finish("REDUCE request");
}

std::string Encode(const ErrorReply& reply) {
  return Writer().Put(static_cast<int32_t>(reply.code)).PutString(reply.message).Take();
}

Status Decode(std::string_view meta, ErrorReply* reply) {
  int32_t code = 0;
  Reader reader(meta);
  reader.Get(&code).GetString(&reply->message);
  reply->code = static_cast<StatusCode>(code);
  switch (reply->code) {
    case StatusCode::kCancelled:
    case StatusCode::kInvalidArgument:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
      break;
    default:
      reader.Fail();
  }
  return reader.Finish("ERROR answer");
}

}  // namespace tfdist::ps
