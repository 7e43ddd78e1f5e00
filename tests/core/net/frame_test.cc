// Frames are decoded as they were encoded, and anything else is rejected: truncated, corrupted,
// random or too long.
#include "core/net/frame.h"

#include <cstring>
#include <iterator>
#include <random>

#include "core/collectives/frames.h"
#include "core/net/authenticate.h"
#include "testing.h"

namespace tfdist::testing::frame_test {
namespace {

using Random = std::mt19937_64;

// All types there are.
constexpr int kTypes[] = {1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21};

FrameLimits LimitsOf(int type) {
  FrameLimits limits;
  CHECK((LimitsOfConnection(static_cast<uint8_t>(type), &limits) ||
         LimitsOfCollectives(static_cast<uint8_t>(type), &limits)));
  return limits;
}

// Frames of the connection itself have no payload, and no pieces of one.
uint32_t MostExposed(const FrameHeader& header) {
  FrameLimits limits;
  return LimitsOfConnection(header.type, &limits) ? 0 : header.meta_bytes / 16;
}

Status Decode(const char* bytes, FrameHeader* header) {
  return tfdist::Decode(bytes, LimitsOfCollectives, header);
}

FrameHeader RandomHeader(Random& random) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(kTypes[random() % std::size(kTypes)]);
  const FrameLimits limits = LimitsOf(header.type);
  header.step = static_cast<uint16_t>(random());
  header.meta_bytes = static_cast<uint32_t>(random() % (limits.meta_bytes + 1));
  header.payload_bytes = random() % (limits.payload_bytes + 1);
  header.exposed = static_cast<uint32_t>(random() % (MostExposed(header) + 1));
  header.key = random();
  header.sequence = random();
  header.offset = random();
  return header;
}

bool Same(const FrameHeader& a, const FrameHeader& b) {
  return a.type == b.type && a.step == b.step && a.meta_bytes == b.meta_bytes &&
         a.payload_bytes == b.payload_bytes && a.exposed == b.exposed && a.key == b.key &&
         a.sequence == b.sequence && a.offset == b.offset;
}

// Expects an error, or a header within all limits that encodes to the same header.
void ExpectDecodesCleanly(const char* bytes) {
  FrameHeader header, again;
  if (!Decode(bytes, &header).ok()) return;
  const FrameLimits limits = LimitsOf(header.type);
  CHECK((header.meta_bytes <= limits.meta_bytes && header.exposed <= MostExposed(header)));
  CHECK(header.payload_bytes <= limits.payload_bytes);
  CHECK_OK(Decode(Encode(header).data(), &again));
  CHECK(Same(header, again));
}

void TestHeaders(Random& random) {
  for (int i = 0; i < 2000; ++i) {
    const FrameHeader header = RandomHeader(random);
    FrameHeaderBytes bytes = Encode(header);
    FrameHeader decoded;
    CHECK_OK(Decode(bytes.data(), &decoded));
    CHECK(Same(header, decoded));
    for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      ExpectDecodesCleanly(bytes.data());
      // The first four bytes are magic and version.
      if (bit < 32) {
        const Status status = Decode(bytes.data(), &decoded);
        CHECK(status.code() == StatusCode::kInvalidArgument);
        CHECK_CONTAINS(status.message(), "not a tfdist frame, or of another version");
      }
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
  for (int i = 0; i < 100000; ++i) {
    FrameHeaderBytes bytes;
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Half of them have the right magic, so that the checks after it run too.
    if (i % 2 == 0) std::memcpy(bytes.data(), Encode(FrameHeader()).data(), 4);
    ExpectDecodesCleanly(bytes.data());
  }
}

void ExpectTooLong(const FrameHeader& header, const FrameLimits& limits) {
  FrameHeader decoded;
  const Status status = Decode(Encode(header).data(), &decoded);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), StrCat("type ", int{header.type}, " claims ", header.meta_bytes,
                                          " and ", header.payload_bytes, " bytes"));
  CHECK_CONTAINS(status.message(),
                 StrCat("the limits are ", limits.meta_bytes, " and ", limits.payload_bytes));
}

TEST_CASE("lengths") {
  for (const int type : kTypes) {
    const FrameLimits limits = LimitsOf(type);
    FrameHeader header, decoded;
    header.type = static_cast<uint8_t>(type);
    CHECK_OK(Decode(Encode(header).data(), &decoded));
    header.meta_bytes = limits.meta_bytes;
    header.payload_bytes = limits.payload_bytes;
    CHECK_OK(Decode(Encode(header).data(), &decoded));
    for (const uint64_t bytes :
         {uint64_t{limits.meta_bytes} + 1, uint64_t{1} << 31, uint64_t{UINT32_MAX}}) {
      header.meta_bytes = static_cast<uint32_t>(bytes);
      ExpectTooLong(header, limits);
    }
    header.meta_bytes = 0;
    for (const uint64_t bytes : {limits.payload_bytes + 1, uint64_t{UINT64_MAX}}) {
      header.payload_bytes = bytes;
      ExpectTooLong(header, limits);
    }
  }
  for (const int type : {0, 8, 15, 22, 255}) {
    FrameHeader header, decoded;
    header.type = static_cast<uint8_t>(type);
    CHECK_CONTAINS(Decode(Encode(header).data(), &decoded).message(),
                   StrCat("unknown frame type ", type));
  }
  FrameHeader header, decoded;
  header.type = static_cast<uint8_t>(CollectiveFrame::kData);
  header.meta_bytes = 31;
  header.exposed = 2;  // which take 32 bytes of meta
  CHECK_CONTAINS(Decode(Encode(header).data(), &decoded).message(), "malformed frame header");
}

// Truncates, extends, corrupts and randomises the encoding of `message`.
template <typename Message>
void TestPayload(const Message& message, const std::string& what, Random& random) {
  const std::string bytes = Encode(message);
  CHECK(bytes.size() <= kMaxCollectiveMeta);
  Message decoded;
  CHECK_OK(tfdist::Decode(bytes, &decoded));
  CHECK(Encode(decoded) == bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A separate copy, so that a sanitizer detects reads past the end.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + size);
    Message ignored;
    const Status status = Decode(std::string_view(cut.data(), cut.size()), &ignored);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "malformed " + what + " frame");
  }
  Message ignored;
  CHECK(!Decode(bytes + '\0', &ignored).ok());
  const auto expect_clean = [](const std::string& changed) {
    Message first, second;
    if (!Decode(changed, &first).ok()) return;
    CHECK_OK(Decode(Encode(first), &second));
    CHECK(Encode(first) == Encode(second));
  };
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    expect_clean(changed);
  }
  for (int i = 0; i < 5000; ++i) {
    std::string garbage(random() % 200, '\0');
    for (char& byte : garbage) byte = static_cast<char>(random());
    expect_clean(garbage);
  }
}

Signature TestSignature(const std::string& name, const std::string& shapes) {
  Signature signature;
  signature.kind = 3;
  signature.dtype = 5;
  signature.reduce_op = 2;
  signature.root = 0x01020304;
  signature.elements = uint64_t{1} << 40;
  signature.shape_hash = 0x1122334455667788;
  signature.algorithm = 4;
  signature.joins = 9;
  signature.blocks = {0, 40, uint64_t{1} << 50};
  signature.name = name;
  signature.shapes = shapes;
  return signature;
}

void TestPayloads(Random& random) {
  TestPayload(Hello{0x1020304050607080, 7, 3, Nonce{9}}, "HELLO", random);
  TestPayload(Challenge{Nonce{5}, Digest{6}}, "CHALLENGE", random);
  TestPayload(TestSignature("dense/kernel", "float[128,10]"), "OPEN", random);
  TestPayload(TestSignature("", ""), "OPEN", random);
  TestPayload(Reply{true, "all_reduce 'loss'", 5, 7, 1.5}, "REPLY", random);
  TestPayload(Reply{}, "REPLY", random);
  TestPayload(Abort{StatusCode::kDeadlineExceeded, "waited too long"}, "ABORT", random);
}

TEST_CASE("texts") {
  // Texts of any length are cut to the limit of a frame.
  const std::string endless(100000, 'x');
  const std::string bytes = Encode(TestSignature(endless, endless));
  CHECK(bytes.size() <= kMaxCollectiveMeta);
  Signature signature;
  CHECK_OK(Decode(bytes, &signature));
  CHECK((!signature.name.empty() && endless.find(signature.name) == 0));
  CHECK(Encode(Reply{true, endless, 0, 0, 0}).size() <= kMaxCollectiveMeta);
  CHECK(Encode(Abort{StatusCode::kInternal, endless}).size() <= kMaxCollectiveMeta);
  const std::string zeros("a\0b", 3);
  CHECK_OK(Decode(Encode(TestSignature(zeros, "")), &signature));
  CHECK(signature.name == zeros);
}

TEST_CASE("signatures") {
  const Signature ours = TestSignature("a", "float[3]");
  CHECK(ours.Matches(TestSignature("b", "float[4]")));  // texts are not compared
  const std::vector<std::function<void(Signature*)>> changes = {
      [](Signature* s) { ++s->kind; },      [](Signature* s) { ++s->dtype; },
      [](Signature* s) { ++s->reduce_op; }, [](Signature* s) { ++s->root; },
      [](Signature* s) { ++s->elements; },  [](Signature* s) { ++s->shape_hash; },
      [](Signature* s) { ++s->algorithm; },
  };
  for (const auto& change : changes) {
    Signature theirs = ours, received;
    change(&theirs);
    CHECK_OK(Decode(Encode(theirs), &received));
    CHECK(!ours.Matches(received));
    CHECK(theirs.Matches(received));
    CHECK((received.blocks == ours.blocks && received.joins == 9));
  }
  // More blocks than fit are not sent.
  Signature many = ours, received;
  many.blocks.assign(kMaxBlocks, 7);
  CHECK(Encode(many).size() <= kMaxCollectiveMeta);
  CHECK_OK(Decode(Encode(many), &received));
  CHECK(received.blocks == many.blocks);
  many.blocks.push_back(7);
  CHECK_OK(Decode(Encode(many), &received));
  CHECK(received.blocks.empty());
}

// The codes of an ABORT: no code of the peer, known or not, is decoded as success.
TEST_CASE("abort codes") {
  for (int code = -3; code < 20; ++code) {
    Abort abort;
    CHECK_OK(Decode(Encode(Abort{static_cast<StatusCode>(code), "why"}), &abort));
    const bool preserved = code == 3 || code == 4 || code == 13;
    CHECK(static_cast<int>(abort.code) == (preserved ? code : 14));
    CHECK(abort.message == "why");
  }
}

TEST_CASE("headers") {
  Random random(20240607);
  TestHeaders(random);
}

TEST_CASE("payloads") {
  Random random(20240608);
  TestPayloads(random);
}

}  // namespace
}  // namespace tfdist::testing::frame_test
