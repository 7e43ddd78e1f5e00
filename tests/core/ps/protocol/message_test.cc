// Messages of the parameter server are decoded as they were encoded; malformed ones are refused:
// cut off, with flipped bits, random, with too many entries.
#include "core/ps/protocol/message.h"

#include <cstring>
#include <random>

#include "testing.h"

namespace tfdist::testing::ps_protocol_message_test {
namespace {

using namespace tfdist::ps;
using Random = std::mt19937_64;

// The types of messages, and nothing else, have limits.
TEST_CASE("limits") {
  for (int type = 0; type < 256; ++type) {
    FrameLimits limits;
    const bool request = type >= 32 && type <= 47, answer = type == 64 || type == 65;
    CHECK(LimitsOfMessages(static_cast<uint8_t>(type), &limits) == (request || answer));
  }
  FrameHeader header = HeaderOf(MessageType::kPush, 7), decoded;
  header.meta_bytes = kMaxMetaBytes;
  header.payload_bytes = kMaxPayloadBytes;
  CHECK_OK(Decode(Encode(header).data(), LimitsOfMessages, &decoded));
  CHECK((decoded.key == 7 && decoded.payload_bytes == kMaxPayloadBytes));
  header.meta_bytes = kMaxMetaBytes + 1;
  CHECK_CONTAINS(Decode(Encode(header).data(), LimitsOfMessages, &decoded).message(),
                 StrCat("the limits are ", kMaxMetaBytes, " and ", kMaxPayloadBytes));
  header.meta_bytes = 0;
  for (const uint64_t bytes : {kMaxPayloadBytes + 1, UINT64_MAX}) {
    header.payload_bytes = bytes;
    CHECK_CONTAINS(Decode(Encode(header).data(), LimitsOfMessages, &decoded).message(),
                   StrCat(" and ", bytes));
  }
}

template <typename Message>
void ExpectDecodesCleanly(const std::string& bytes) {
  // A copy on the heap, so that sanitizers notice a read past the end.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  Message first, second;
  if (!Decode(std::string_view(copy.data(), copy.size()), &first).ok()) return;
  CHECK(Encode(first) == bytes);
  CHECK_OK(Decode(Encode(first), &second));
}

// Cuts, extends, flips and randomises the encoding of `message`.
template <typename Message>
void TestMeta(const Message& message, const std::string& what, Random& random) {
  const std::string bytes = Encode(message);
  Message decoded;
  CHECK_OK(Decode(bytes, &decoded));
  CHECK(Encode(decoded) == bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<char> cut(bytes.begin(), bytes.begin() + size);
    Message ignored;
    const Status status = Decode(std::string_view(cut.data(), cut.size()), &ignored);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "malformed " + what);
  }
  Message ignored;
  CHECK(!Decode(bytes + '\0', &ignored).ok());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ExpectDecodesCleanly<Message>(changed);
  }
  for (int i = 0; i < 3000; ++i) {
    std::string garbage(random() % 200, '\0');
    for (char& byte : garbage) byte = static_cast<char>(random());
    ExpectDecodesCleanly<Message>(garbage);
    // As if the first count were right.
    garbage.replace(0, std::min<size_t>(4, garbage.size()), std::string(4, '\1'));
    ExpectDecodesCleanly<Message>(garbage);
  }
}

OptimizerConfig TestConfig() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kFtrl;
  config.nesterov = true;
  config.amsgrad = true;
  config.momentum = 0.25;
  config.rho = 0.5;
  config.beta_1 = 0.9;
  config.beta_2 = 0.99;
  config.epsilon = 1e-7;
  config.learning_rate_power = -0.5;
  config.l1_regularization_strength = 1;
  config.l2_regularization_strength = 2;
  config.l2_shrinkage_regularization_strength = 3;
  config.beta = 4;
  config.beta_2_decay = -0.75;
  config.epsilon_1 = 5;
  config.epsilon_2 = 6;
  config.clip_threshold = 7;
  return config;
}

PushRequest TestPush() {
  PushRequest push;
  push.sequence = 7;
  push.clock = 6;
  push.incarnation = 0x1122334455667788;
  push.steps = {{0.5, 3}, {0.25, 4}};
  push.entries = {{1, UpdateKind::kGradient, 1, 0, 0},
                  {2, UpdateKind::kRows, 0, 1000, 64},
                  {3, UpdateKind::kDelta, 0, 0, 0},
                  {4, UpdateKind::kAssign, 0, 0, 0}};
  return push;
}

void TestMetas(Random& random) {
  TestMeta(OpenRequest{0x0102030405060708, 9}, "OPEN request", random);
  TestMeta(OpenReply{0x0102030405060708, 9}, "OPEN answer", random);
  TestMeta(CreateRequest{{{"dense/kernel", DType::kFloat32, 12, true},
                          {"", DType::kBytes, uint64_t{1} << 50, false}}},
           "CREATE request", random);
  TestMeta(CreateReply{{0, kNoShard, 7}}, "CREATE answer", random);
  TestMeta(BindRequest{TestConfig(), {{5, {6, 7}, 0.125}, {8, {}, 0}}}, "BIND request", random);
  TestMeta(PullRequest{true, {{1, 2}, {3, 4}}}, "PULL request", random);
  TestMeta(PullReply{5, {6, 7, 8}}, "PULL answer", random);
  TestMeta(TestPush(), "PUSH request", random);
  TestMeta(PushReply{true}, "PUSH answer", random);
  TestMeta(SetRequest{{1, 2, 3}}, "SET request", random);
  TestMeta(ExchangeRequest{1, 0.5, {2, 3}}, "EXCHANGE request", random);
  TestMeta(ReduceRequest{1, 2, {DType::kFloat16, DType::kInt64}, {3, 4}}, "REDUCE request", random);
  TestMeta(ScanRowsRequest{3, 4, 5, 6, true}, "SCAN_ROWS request", random);
  TestMeta(ScanRowsReply{3, 4, true, 6}, "SCAN_ROWS answer", random);
  TestMeta(EditRowsRequest{3, EditKind::kUpsert, 4, 5, 6}, "EDIT_ROWS request", random);
  TestMeta(FindRowsRequest{3, 4, true}, "FIND_ROWS request", random);
  TestMeta(FindRowsReply{5}, "FIND_ROWS answer", random);
  TestMeta(ResolveRequest{{1, 2, 3}, {4, 5}}, "RESOLVE request", random);
  TestMeta(ResolveReply{true, 6}, "RESOLVE answer", random);
  TestMeta(CommitRequest{{1, 2, 3}, true}, "COMMIT request", random);
  TestMeta(CommitReply{false, true}, "COMMIT answer", random);
  TestMeta(ErrorReply{StatusCode::kFailedPrecondition, "why"}, "ERROR answer", random);
}

TEST_CASE("fields arrive") {
  BindRequest bind;
  CHECK_OK(Decode(Encode(BindRequest{TestConfig(), {{5, {6, 7}, 0.125}}}), &bind));
  CHECK((bind.config.kind == OptimizerKind::kFtrl && bind.config.nesterov &&
         !bind.config.centered && bind.config.amsgrad));
  CHECK((bind.config.momentum == 0.25 && bind.config.rho == 0.5 && bind.config.beta_1 == 0.9));
  CHECK((bind.config.beta_2 == 0.99 && bind.config.epsilon == 1e-7));
  CHECK(bind.config.learning_rate_power == -0.5);
  CHECK((bind.config.l1_regularization_strength == 1 &&
         bind.config.l2_regularization_strength == 2 &&
         bind.config.l2_shrinkage_regularization_strength == 3 && bind.config.beta == 4));
  CHECK((bind.config.beta_2_decay == -0.75 && bind.config.epsilon_1 == 5 &&
         bind.config.epsilon_2 == 6 && bind.config.clip_threshold == 7));
  CHECK((bind.entries[0].shard == 5 && bind.entries[0].weight_decay == 0.125));
  CHECK(bind.entries[0].slots == std::vector<uint32_t>({6, 7}));
  PushRequest push;
  CHECK_OK(Decode(Encode(TestPush()), &push));
  CHECK((push.sequence == 7 && push.clock == 6 && push.incarnation == 0x1122334455667788));
  CHECK((push.steps[1].learning_rate == 0.25 && push.steps[1].step == 4));
  CHECK((push.entries[0].step == 1 && push.entries[0].kind == UpdateKind::kGradient));
  CHECK((push.entries[1].rows == 1000 && push.entries[1].width == 64));
  CHECK((push.entries[3].shard == 4 && push.entries[3].kind == UpdateKind::kAssign));
  CreateRequest create;
  const std::string zeros("a\0b", 3);
  CHECK_OK(Decode(Encode(CreateRequest{{{zeros, DType::kInt64, 12, true}}}), &create));
  CHECK((create.entries[0].name == zeros && create.entries[0].dtype == DType::kInt64));
  CHECK((create.entries[0].elements == 12 && create.entries[0].has_value));
}

// The dtypes in which rows of tables are sent.
TEST_CASE("wires") {
  for (const int wire : {0, 1, 2, 3, 4, 255}) {
    const bool known = wire >= 1 && wire <= 3;
    const auto dtype = static_cast<DType>(wire);
    LookupRequest lookup, lookup_read;
    lookup.entries = {{7, 1000, dtype}};
    CHECK(Decode(Encode(lookup), &lookup_read).ok() == known);
    PushRequest push, push_read;
    push.steps = {{0.5, 1}};
    push.entries = {{7, UpdateKind::kTableRows, 0, 1000, 64, dtype}};
    CHECK(Decode(Encode(push), &push_read).ok() == known);
    if (!known) continue;
    CHECK((lookup_read.entries[0].wire == dtype && lookup_read.entries[0].count == 1000));
    CHECK((push_read.entries[0].wire == dtype && push_read.entries[0].rows == 1000));
  }
}

// Well-formed bytes that no valid message encodes to.
TEST_CASE("nonsense") {
  PushRequest push = TestPush(), push_decoded;
  push.entries[0].step = 2;  // there are two
  CHECK(!Decode(Encode(push), &push_decoded).ok());
  push = TestPush();
  push.entries[2].step = 1;  // a delta has no step
  CHECK(!Decode(Encode(push), &push_decoded).ok());
  push = TestPush();
  push.entries[0].kind = static_cast<UpdateKind>(6);
  CHECK(!Decode(Encode(push), &push_decoded).ok());
  BindRequest bind, bind_decoded;
  for (const int kind : {0, 10, 255}) {
    bind.config.kind = static_cast<OptimizerKind>(kind);
    CHECK(!Decode(Encode(bind), &bind_decoded).ok());
  }
  for (const int dtype : {0, 8, 255}) {
    CreateRequest create;
    CHECK(
        !Decode(Encode(CreateRequest{{{"a", static_cast<DType>(dtype), 1, true}}}), &create).ok());
  }
  for (const int code : {-1, 0, 2, 15}) {
    ErrorReply error;
    CHECK(!Decode(Encode(ErrorReply{static_cast<StatusCode>(code), "why"}), &error).ok());
  }
  // More entries than there are bytes for: refused before anything is allocated.
  for (const uint32_t count : {2u, 1u << 20, UINT32_MAX}) {
    std::string bytes = Encode(SetRequest{{1}});
    std::memcpy(bytes.data(), &count, sizeof(count));
    SetRequest set;
    CHECK(!Decode(bytes, &set).ok());
    CHECK(set.shards.empty());
  }
}

TEST_CASE("metas") {
  Random random(20250107);
  TestMetas(random);
}

}  // namespace
}  // namespace tfdist::testing::ps_protocol_message_test
