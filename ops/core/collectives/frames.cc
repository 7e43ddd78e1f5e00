#include "core/collectives/frames.h"

#include <algorithm>

#include "core/base/wire.h"

namespace tfdist {
namespace {

constexpr uint16_t kMaxTextBytes = 512;

}  // namespace

bool LimitsOfCollectives(uint8_t type, FrameLimits* limits) {
  if (type < static_cast<uint8_t>(CollectiveFrame::kOpen) ||
      type > static_cast<uint8_t>(CollectiveFrame::kGoodbye)) {
    return false;
  }
  const bool data = type == static_cast<uint8_t>(CollectiveFrame::kData);
  *limits = {kMaxCollectiveMeta, data ? kChunkBytes : 0};
  return true;
}

bool Signature::Matches(const Signature& other) const {
  return kind == other.kind && dtype == other.dtype && reduce_op == other.reduce_op &&
         algorithm == other.algorithm && root == other.root && elements == other.elements &&
         shape_hash == other.shape_hash;
}

std::string Encode(const Signature& s) {
  Writer writer;
  writer.Put(s.kind).Put(s.dtype).Put(s.reduce_op).Put(s.algorithm).Put(s.root).Put(s.elements);
  writer.Put(s.shape_hash).Put(s.joins);
  writer.PutString(s.name, kMaxTextBytes).PutString(s.shapes, kMaxTextBytes);
  const size_t blocks = s.blocks.size() <= kMaxBlocks ? s.blocks.size() : 0;
  writer.Put(static_cast<uint16_t>(blocks));
  for (size_t i = 0; i < blocks; ++i) writer.Put(s.blocks[i]);
  return writer.Take();
}

Status Decode(std::string_view bytes, Signature* s) {
  Reader reader(bytes);
  reader.Get(&s->kind).Get(&s->dtype).Get(&s->reduce_op).Get(&s->algorithm).Get(&s->root);
  reader.Get(&s->elements).Get(&s->shape_hash).Get(&s->joins);
  reader.GetString(&s->name).GetString(&s->shapes);
  uint16_t blocks = 0;
  reader.Get(&blocks);
  s->blocks.resize(std::min<size_t>(blocks, kMaxBlocks));
  for (uint64_t& bytes : s->blocks) reader.Get(&bytes);
  return reader.Finish("OPEN frame");
}

std::string Encode(const Reply& reply) {
  return Writer()
      .Put(static_cast<uint8_t>(reply.started))
      .PutString(reply.doing, kMaxTextBytes)
      .Put(reply.key)
      .Put(reply.sequence)
      .Put(reply.waited_seconds)
      .Take();
}

Status Decode(std::string_view bytes, Reply* reply) {
  uint8_t started = 0;
  Reader reader(bytes);
  reader.Get(&started).GetString(&reply->doing).Get(&reply->key).Get(&reply->sequence);
  reader.Get(&reply->waited_seconds);
  reply->started = started != 0;
  return reader.Finish("REPLY frame");
}

std::string Encode(const Abort& abort) {
  return Writer()
      .Put(static_cast<int32_t>(abort.code))
      .PutString(abort.message, kMaxTextBytes)
      .Take();
}

Status Decode(std::string_view bytes, Abort* abort) {
  int32_t code = 0;
  Reader reader(bytes);
  reader.Get(&code).GetString(&abort->message);
  switch (static_cast<StatusCode>(code)) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kInternal:
      abort->code = static_cast<StatusCode>(code);
      break;
    default:  // whatever else ended the peer's communicator, to us the peer is unavailable
      abort->code = StatusCode::kUnavailable;
  }
  return reader.Finish("ABORT frame");
}

}  // namespace tfdist
