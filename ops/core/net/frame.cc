#include "core/net/frame.h"

#include <algorithm>

#include "core/base/wire.h"

namespace tfdist {
namespace {

// "\x02TFD": the version is the first byte on the wire.
constexpr uint32_t kMagic = 0x44465402;
constexpr uint32_t kMaxConnectionMeta = 256;
constexpr size_t kAddressBytes = 2 * sizeof(uint64_t);  // address and size of one piece

}  // namespace

bool LimitsOfConnection(uint8_t type, FrameLimits* limits) {
  if (type < static_cast<uint8_t>(FrameType::kHello) ||
      type > static_cast<uint8_t>(FrameType::kRefuse)) {
    return false;
  }
  *limits = {kMaxConnectionMeta, 0};
  return true;
}

bool BeginsFrame(std::string_view bytes) {
  return !bytes.empty() && static_cast<uint8_t>(bytes[0]) == (kMagic & 0xff);
}

FrameHeaderBytes Encode(const FrameHeader& header) {
  const std::string bytes = Writer()
                                .Put(kMagic)
                                .Put(header.type)
                                .Put(uint8_t{0})
                                .Put(header.step)
                                .Put(header.meta_bytes)
                                .Put(header.exposed)
                                .Put(header.payload_bytes)
                                .Put(header.key)
                                .Put(header.sequence)
                                .Put(header.offset)
                                .Take();
  FrameHeaderBytes out;
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

Status Decode(const char* bytes, LimitsOf limits_of, FrameHeader* header) {
  uint32_t magic = 0;
  uint8_t reserved = 0;
  Reader reader(std::string_view(bytes, kFrameHeaderBytes));
  reader.Get(&magic).Get(&header->type).Get(&reserved).Get(&header->step);
  reader.Get(&header->meta_bytes).Get(&header->exposed).Get(&header->payload_bytes);
  reader.Get(&header->key).Get(&header->sequence).Get(&header->offset);
  if (magic != kMagic) {
    return Status(StatusCode::kInvalidArgument, "not a tfdist frame, or of another version");
  }
  FrameLimits limits;
  const bool of_connection = LimitsOfConnection(header->type, &limits);
  if (!of_connection && !limits_of(header->type, &limits)) {
    return Status(StatusCode::kInvalidArgument, StrCat("unknown frame type ", int{header->type}));
  }
  if (header->meta_bytes > limits.meta_bytes || header->payload_bytes > limits.payload_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("frame of type ", int{header->type}, " claims ", header->meta_bytes,
                         " and ", header->payload_bytes, " bytes, the limits are ",
                         limits.meta_bytes, " and ", limits.payload_bytes));
  }
  const uint32_t most_exposed = of_connection ? 0 : header->meta_bytes / kAddressBytes;
  if (reserved != 0 || header->exposed > most_exposed) reader.Fail();
  return reader.Finish("frame header");
}

std::string EncodeFrame(uint8_t type, std::string_view meta) {
  FrameHeader header;
  header.type = type;
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  const FrameHeaderBytes head = Encode(header);
  std::string frame(head.begin(), head.end());
  frame += meta;
  return frame;
}

void AppendExposed(const std::vector<iovec>& pieces, FrameHeader* header, std::string* meta) {
  Writer writer;
  for (const iovec& piece : pieces) {
    writer.Put(reinterpret_cast<uint64_t>(piece.iov_base)).Put(uint64_t{piece.iov_len});
  }
  *meta += writer.Take();
  header->exposed = static_cast<uint32_t>(pieces.size());
  header->meta_bytes = static_cast<uint32_t>(meta->size());
}

Status TakeExposed(const FrameHeader& header, std::string_view* meta, std::vector<iovec>* pieces) {
  const size_t begin = meta->size() - header.exposed * kAddressBytes;
  Reader reader(meta->substr(begin));
  *meta = meta->substr(0, begin);
  uint64_t missing = header.payload_bytes;
  pieces->clear();
  for (uint32_t i = 0; i < header.exposed; ++i) {
    uint64_t address = 0, bytes = 0;
    reader.Get(&address).Get(&bytes);
    if (bytes > missing) reader.Fail();
    missing -= std::min(missing, bytes);
    pieces->push_back({reinterpret_cast<void*>(address), bytes});
  }
  if (header.exposed > 0 && missing > 0) reader.Fail();
  return reader.Finish("list of exposed memory");
}

}  // namespace tfdist
