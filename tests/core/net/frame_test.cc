// Frames are decoded as they were encoded, and anything else is rejected: truncated, corrupted,
// random or too long.
#include "core/net/frame.h"

#include <cstring>
#include <random>

#include "testing.h"

namespace tfdist::testing::frame_test {
namespace {

using Random = std::mt19937_64;

FrameHeader RandomHeader(Random& random) {
  FrameHeader header;
  header.type = static_cast<FrameType>(1 + random() % 8);
  header.step = static_cast<uint16_t>(random());
  header.length = static_cast<uint32_t>(random() % (kMaxControlBytes + 1));
  header.key = random();
  header.sequence = random();
  header.offset = random();
  return header;
}

bool Same(const FrameHeader& a, const FrameHeader& b) {
  return a.type == b.type && a.step == b.step && a.length == b.length && a.key == b.key &&
         a.sequence == b.sequence && a.offset == b.offset;
}

size_t Limit(FrameType type) { return type == FrameType::kData ? kChunkBytes : kMaxControlBytes; }

// Expects an error, or a header within all limits that encodes to the same header.
void ExpectDecodesCleanly(const char* bytes) {
  FrameHeader header, again;
  if (!DecodeHeader(bytes, &header).ok()) return;
  EXPECT(header.type >= FrameType::kHello && header.type <= FrameType::kProof);
  EXPECT(header.length <= Limit(header.type));
  EXPECT_OK(DecodeHeader(EncodeHeader(header).data(), &again));
  EXPECT(Same(header, again));
}

void TestHeaders(Random& random) {
  for (int i = 0; i < 2000; ++i) {
    const FrameHeader header = RandomHeader(random);
    HeaderBytes bytes = EncodeHeader(header);
    FrameHeader decoded;
    EXPECT_OK(DecodeHeader(bytes.data(), &decoded));
    EXPECT(Same(header, decoded));
    for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      ExpectDecodesCleanly(bytes.data());
      // The first four bytes are magic and version.
      if (bit < 32) {
        const Status status = DecodeHeader(bytes.data(), &decoded);
        EXPECT(status.code() == StatusCode::kInvalidArgument);
        EXPECT_CONTAINS(status.message(), "not a tfdist frame, or of another version");
      }
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
  for (int i = 0; i < 100000; ++i) {
    HeaderBytes bytes;
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Half of them have the right magic, so that the checks after it run too.
    if (i % 2 == 0) std::memcpy(bytes.data(), EncodeHeader({}).data(), 4);
    ExpectDecodesCleanly(bytes.data());
  }
}

void TestLengths() {
  for (int type = 1; type <= 8; ++type) {
    FrameHeader header, decoded;
    header.type = static_cast<FrameType>(type);
    const size_t limit = Limit(header.type);
    for (const uint64_t length : {uint64_t{0}, uint64_t{limit}}) {
      header.length = static_cast<uint32_t>(length);
      EXPECT_OK(DecodeHeader(EncodeHeader(header).data(), &decoded));
    }
    for (const uint64_t length : {uint64_t{limit} + 1, uint64_t{1} << 31, uint64_t{UINT32_MAX}}) {
      header.length = static_cast<uint32_t>(length);
      const Status status = DecodeHeader(EncodeHeader(header).data(), &decoded);
      EXPECT(status.code() == StatusCode::kInvalidArgument);
      EXPECT_CONTAINS(status.message(), StrCat("type ", type, " claims ", length, " bytes"));
      EXPECT_CONTAINS(status.message(), StrCat("the limit is ", limit));
    }
  }
  for (const int type : {0, 14, 255}) {
    FrameHeader header, decoded;
    header.type = static_cast<FrameType>(type);
    EXPECT_CONTAINS(DecodeHeader(EncodeHeader(header).data(), &decoded).message(),
                    StrCat("unknown frame type ", type));
  }
}

// Truncates, extends, corrupts and randomises the encoding of `message`.
template <typename Message>
void TestPayload(const Message& message, const std::string& what, Random& random) {
  const std::string bytes = Encode(message);
  EXPECT(bytes.size() <= kMaxControlBytes);
  Message decoded;
  EXPECT_OK(Decode(bytes, &decoded));
  EXPECT(Encode(decoded) == bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A separate copy, so that a sanitizer detects reads past the end.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + size);
    Message ignored;
    const Status status = Decode(std::string_view(cut.data(), cut.size()), &ignored);
    EXPECT(status.code() == StatusCode::kInvalidArgument);
    EXPECT_CONTAINS(status.message(), "malformed " + what + " frame");
  }
  Message ignored;
  EXPECT(!Decode(bytes + '\0', &ignored).ok());
  const auto expect_clean = [](const std::string& changed) {
    Message first, second;
    if (!Decode(changed, &first).ok()) return;
    EXPECT_OK(Decode(Encode(first), &second));
    EXPECT(Encode(first) == Encode(second));
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

void TestTexts() {
  // Texts of any length are cut to the limit of a frame.
  const std::string endless(100000, 'x');
  const std::string bytes = Encode(TestSignature(endless, endless));
  EXPECT(bytes.size() <= kMaxControlBytes);
  Signature signature;
  EXPECT_OK(Decode(bytes, &signature));
  EXPECT(!signature.name.empty() && endless.find(signature.name) == 0);
  EXPECT(Encode(Reply{true, endless, 0, 0, 0}).size() <= kMaxControlBytes);
  EXPECT(Encode(Abort{StatusCode::kInternal, endless}).size() <= kMaxControlBytes);
  const std::string zeros("a\0b", 3);
  EXPECT_OK(Decode(Encode(TestSignature(zeros, "")), &signature));
  EXPECT(signature.name == zeros);
}

void TestSignatures() {
  const Signature ours = TestSignature("a", "float[3]");
  EXPECT(ours.Matches(TestSignature("b", "float[4]")));  // texts are not compared
  const std::vector<std::function<void(Signature*)>> changes = {
      [](Signature* s) { ++s->kind; },      [](Signature* s) { ++s->dtype; },
      [](Signature* s) { ++s->reduce_op; }, [](Signature* s) { ++s->root; },
      [](Signature* s) { ++s->elements; },  [](Signature* s) { ++s->shape_hash; },
      [](Signature* s) { ++s->algorithm; },
  };
  for (const auto& change : changes) {
    Signature theirs = ours, received;
    change(&theirs);
    EXPECT_OK(Decode(Encode(theirs), &received));
    EXPECT(!ours.Matches(received));
    EXPECT(theirs.Matches(received));
    EXPECT(received.blocks == ours.blocks && received.joins == 9);
  }
  // More blocks than fit are not sent.
  Signature many = ours, received;
  many.blocks.assign(kMaxBlocks, 7);
  EXPECT(Encode(many).size() <= kMaxControlBytes);
  EXPECT_OK(Decode(Encode(many), &received));
  EXPECT(received.blocks == many.blocks);
  many.blocks.push_back(7);
  EXPECT_OK(Decode(Encode(many), &received));
  EXPECT(received.blocks.empty());
}

// The codes of an ABORT: no code of the peer, known or not, is decoded as success.
void TestAbortCodes() {
  for (int code = -3; code < 20; ++code) {
    Abort abort;
    EXPECT_OK(Decode(Encode(Abort{static_cast<StatusCode>(code), "why"}), &abort));
    const bool preserved = code == 3 || code == 4 || code == 13;
    EXPECT(static_cast<int>(abort.code) == (preserved ? code : 14));
    EXPECT(abort.message == "why");
  }
}

void Main() {
  Random random(20240607);
  TestHeaders(random);
  TestLengths();
  TestPayloads(random);
  TestTexts();
  TestSignatures();
  TestAbortCodes();
  std::puts("frame: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::frame_test
