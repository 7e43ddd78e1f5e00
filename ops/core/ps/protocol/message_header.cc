// What is around a message: its header, and the list of what is lent.
#include <algorithm>

#include "core/ps/protocol/message.h"
#include "core/ps/protocol/message_fields.h"

namespace tfdist::ps {
namespace {

constexpr uint32_t kMessageMagic =
    0x50465401;  // "\x01TFP": the version is the first byte on the wire

constexpr size_t kLentPieceBytes = 2 * sizeof(uint64_t);  // address and size

bool IsKnown(uint8_t type) {
  return (type >= static_cast<uint8_t>(MessageType::kOpen) &&
          type <= static_cast<uint8_t>(MessageType::kFindRows)) ||
         (type >= static_cast<uint8_t>(MessageType::kOk) &&
          type <= static_cast<uint8_t>(MessageType::kResend));
}

}  // namespace

std::array<char, kMessageHeaderBytes> Encode(const MessageHeader& header) {
  const std::string bytes = Writer()
                                .Put(kMessageMagic)
                                .Put(header.type)
                                .Put(uint8_t{0})
                                .Put(uint16_t{0})
                                .Put(header.meta_bytes)
                                .Put(header.lent)
                                .Put(header.payload_bytes)
                                .Put(header.number)
                                .Take();
  std::array<char, kMessageHeaderBytes> out;
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

Status Decode(const char* bytes, MessageHeader* header) {
  uint32_t magic = 0;
  uint16_t reserved16 = 0;
  uint8_t type = 0, reserved8 = 0;
  Reader reader(std::string_view(bytes, kMessageHeaderBytes));
  reader.Get(&magic).Get(&type).Get(&reserved8).Get(&reserved16).Get(&header->meta_bytes);
  reader.Get(&header->lent).Get(&header->payload_bytes).Get(&header->number);
  if (magic != kMessageMagic) {
    return Status(StatusCode::kInvalidArgument, "not a tfdist message, or of another version");
  }
  if (!IsKnown(type)) {
    return Status(StatusCode::kInvalidArgument, StrCat("unknown message type ", int{type}));
  }
  header->type = static_cast<MessageType>(type);
  if (header->meta_bytes > kMaxMetaBytes || header->payload_bytes > kMaxPayloadBytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("message of type ", int{type}, " claims ", header->meta_bytes, " and ",
                         header->payload_bytes, " bytes, the limits are ", kMaxMetaBytes, " and ",
                         kMaxPayloadBytes));
  }
  if (reserved8 != 0 || reserved16 != 0) reader.Fail();
  if (header->lent > header->meta_bytes / kLentPieceBytes) reader.Fail();
  return reader.Finish("message header");
}

void PutLent(const std::vector<iovec>& payload, MessageHeader* header, std::string* meta) {
  Writer pieces;
  for (const iovec& piece : payload) {
    pieces.Put(reinterpret_cast<uint64_t>(piece.iov_base)).Put(uint64_t{piece.iov_len});
  }
  *meta += pieces.Take();
  header->lent = Count(payload);
  header->meta_bytes = static_cast<uint32_t>(meta->size());
}

Status TakeLent(const MessageHeader& header, std::string_view* meta, std::vector<iovec>* payload) {
  const size_t begin = meta->size() - header.lent * kLentPieceBytes;
  Reader reader(meta->substr(begin));
  *meta = meta->substr(0, begin);
  uint64_t missing = header.payload_bytes;
  payload->clear();
  for (uint32_t i = 0; i < header.lent; ++i) {
    uint64_t address = 0, bytes = 0;
    reader.Get(&address).Get(&bytes);
    if (bytes > missing) reader.Fail();
    missing -= std::min(missing, bytes);
    payload->push_back({reinterpret_cast<void*>(address), bytes});
  }
  if (header.lent > 0 && missing > 0) reader.Fail();
  return reader.Finish("list of what is lent");
}

}  // namespace tfdist::ps
