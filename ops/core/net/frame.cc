#include "core/net/frame.h"

#include <algorithm>

#include "core/base/wire.h"

namespace tfdist {
namespace {

// "\x01TFD" on the wire: the first byte is the version.
constexpr uint32_t kFrameMagic = 0x44465401;
constexpr uint16_t kMaxTextBytes = 512;

size_t MaxLength(FrameType type) {
  return type == FrameType::kData ? kChunkBytes : kMaxControlBytes;
}

}  // namespace

HeaderBytes EncodeHeader(const FrameHeader& header) {
  const std::string bytes = Writer()
                                .Put(kFrameMagic)
                                .Put(static_cast<uint8_t>(header.type))
                                .Put(uint8_t{0})
                                .Put(header.step)
                                .Put(header.length)
                                .Put(uint32_t{0})
                                .Put(header.key)
                                .Put(header.sequence)
                                .Put(header.offset)
                                .Take();
  HeaderBytes out;
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

Status DecodeHeader(const char* bytes, FrameHeader* header) {
  uint32_t magic = 0, reserved32 = 0;
  uint8_t type = 0, reserved8 = 0;
  Reader reader(std::string_view(bytes, kHeaderBytes));
  reader.Get(&magic).Get(&type).Get(&reserved8).Get(&header->step).Get(&header->length);
  reader.Get(&reserved32).Get(&header->key).Get(&header->sequence).Get(&header->offset);
  if (magic != kFrameMagic) {
    return Status(StatusCode::kInvalidArgument, "not a tfdist frame, or of another version");
  }
  if (type < static_cast<uint8_t>(FrameType::kHello) ||
      type > static_cast<uint8_t>(FrameType::kProof)) {
    return Status(StatusCode::kInvalidArgument, StrCat("unknown frame type ", int{type}));
  }
  header->type = static_cast<FrameType>(type);
  if (header->length > MaxLength(header->type)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("frame of type ", int{type}, " claims ", header->length,
                         " bytes, the limit is ", MaxLength(header->type)));
  }
  return reader.Finish("header frame");
}

bool Signature::Matches(const Signature& other) const {
  return kind == other.kind && dtype == other.dtype && reduce_op == other.reduce_op &&
         algorithm == other.algorithm && root == other.root && elements == other.elements &&
         shape_hash == other.shape_hash;
}

std::string EncodeFrame(FrameType type, const std::string& payload) {
  FrameHeader header;
  header.type = type;
  header.length = static_cast<uint32_t>(payload.size());
  const HeaderBytes head = EncodeHeader(header);
  return std::string(head.begin(), head.end()) + payload;
}

std::string Encode(const Hello& hello) {
  return Writer().Put(hello.generation).Put(hello.rank).Put(hello.to).Put(hello.nonce).Take();
}

Status Decode(std::string_view bytes, Hello* hello) {
  Reader reader(bytes);
  reader.Get(&hello->generation).Get(&hello->rank).Get(&hello->to).Get(&hello->nonce);
  return reader.Finish("HELLO frame");
}

std::string Encode(const Challenge& challenge) {
  return Writer().Put(challenge.nonce).Put(challenge.proof).Take();
}

Status Decode(std::string_view bytes, Challenge* challenge) {
  Reader reader(bytes);
  return reader.Get(&challenge->nonce).Get(&challenge->proof).Finish("CHALLENGE frame");
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
    default:  // for any other reason the peer is unavailable to this rank
      abort->code = StatusCode::kUnavailable;
  }
  return reader.Finish("ABORT frame");
}

std::string Encode(const Offer& offer) {
  return Writer().Put(offer.canary.address).Put(offer.canary.value).Take();
}

Status Decode(std::string_view bytes, Offer* offer) {
  Reader reader(bytes);
  return reader.Get(&offer->canary.address).Get(&offer->canary.value).Finish("WELCOME frame");
}

std::string Encode(const Shared& shared) {
  const CanaryInfo& canary = shared.canary;
  return Writer()
      .Put(uint8_t{shared.joined})
      .Put(uint8_t{shared.reads})
      .Put(canary.address)
      .Put(canary.value)
      .Take();
}

Status Decode(std::string_view bytes, Shared* shared) {
  CanaryInfo& canary = shared->canary;
  Reader reader(bytes);
  reader.GetBool(&shared->joined).GetBool(&shared->reads);
  return reader.Get(&canary.address).Get(&canary.value).Finish("SHARED frame");
}

std::string Encode(const Lent& lent) {
  Writer writer;
  for (const iovec& piece : lent.pieces) {
    writer.Put(reinterpret_cast<uint64_t>(piece.iov_base)).Put(uint64_t{piece.iov_len});
  }
  return writer.Take();
}

Status Decode(std::string_view bytes, Lent* lent) {
  constexpr size_t kPieceBytes = 2 * sizeof(uint64_t);
  Reader reader(bytes);
  size_t total = 0;
  for (size_t left = bytes.size(); left >= kPieceBytes; left -= kPieceBytes) {
    uint64_t address = 0, length = 0;
    reader.Get(&address).Get(&length);
    if (length > kChunkBytes - total) reader.Fail();
    total += std::min<uint64_t>(length, kChunkBytes - total);
    lent->pieces.push_back({reinterpret_cast<void*>(address), length});
  }
  if (total == 0) reader.Fail();
  return reader.Finish("LEND frame");
}

}  // namespace tfdist
