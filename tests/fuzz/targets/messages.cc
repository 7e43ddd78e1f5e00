// The metas of all frames and messages, and the headers of frames.
//
// Input: one byte for the type of the message, then its bytes. An accepted message is encoded and
// decoded again: it must be the same.
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/collectives/frames.h"
#include "core/net/authenticate.h"
#include "core/net/frame.h"
#include "core/net/message_stream.h"
#include "core/ps/protocol/message.h"
#include "fuzz.h"
#include "testing.h"

namespace tfdist::fuzz::messages {
namespace {

using namespace ps;

Status DecodeAny(std::string_view bytes, Sharing* out) { return Decode(bytes, "SHARED", out); }
template <typename Message>
Status DecodeAny(std::string_view bytes, Message* out) {
  return Decode(bytes, out);
}

template <typename Message>
void Check(const std::string& bytes) {
  Message first, second;
  if (!DecodeAny(bytes, &first).ok()) return;
  const std::string encoded = Encode(first);
  CHECK_OK(DecodeAny(encoded, &second));
  CHECK(Encode(second) == encoded);
}

// Texts are cut and codes of others replaced, where they are decoded or encoded.
template <typename Message>
void CheckExactly(const std::string& bytes) {
  Check<Message>(bytes);
  Message message;
  if (DecodeAny(bytes, &message).ok()) CHECK(Encode(message) == bytes);
}

// A header, and the addresses of exposed memory, if it says that there are any.
template <LimitsOf limits>
void CheckHeader(const std::string& bytes) {
  if (bytes.size() < kFrameHeaderBytes) return;
  FrameHeader header;
  if (!Decode(bytes.data(), limits, &header).ok()) return;
  const FrameHeaderBytes encoded = Encode(header);
  CHECK(std::equal(encoded.begin(), encoded.end(), bytes.begin()));
  const std::string meta = bytes.substr(kFrameHeaderBytes);
  if (meta.size() < header.meta_bytes) return;
  std::string_view view(meta.data(), header.meta_bytes);
  std::vector<iovec> pieces;
  if (!TakeExposed(header, &view, &pieces).ok()) return;
  CHECK(pieces.size() == header.exposed);
  FrameHeader again = header;
  std::string written(view);
  AppendExposed(pieces, &again, &written);
  CHECK(written == meta.substr(0, header.meta_bytes));
}

constexpr void (*kChecks[])(const std::string&) = {
    CheckHeader<LimitsOfCollectives>,
    CheckHeader<LimitsOfMessages>,
    CheckExactly<Hello>,
    CheckExactly<Challenge>,
    CheckExactly<Sharing>,
    Check<Signature>,
    Check<Reply>,
    Check<Abort>,
    CheckExactly<OpenRequest>,
    CheckExactly<OpenReply>,
    CheckExactly<CreateRequest>,
    CheckExactly<CreateReply>,
    CheckExactly<BindRequest>,
    CheckExactly<PullRequest>,
    CheckExactly<PullReply>,
    CheckExactly<PushRequest>,
    CheckExactly<PushReply>,
    CheckExactly<SetRequest>,
    CheckExactly<ExchangeRequest>,
    CheckExactly<ReduceRequest>,
    CheckExactly<TableRequest>,
    CheckExactly<TableReply>,
    CheckExactly<LookupRequest>,
    CheckExactly<ScanRowsRequest>,
    CheckExactly<ScanRowsReply>,
    CheckExactly<EditRowsRequest>,
    CheckExactly<FindRowsRequest>,
    CheckExactly<FindRowsReply>,
    CheckExactly<ResolveRequest>,
    CheckExactly<ResolveReply>,
    CheckExactly<CommitRequest>,
    CheckExactly<CommitReply>,
    CheckExactly<ErrorReply>,
};

void Run(Input input) {
  const auto check = kChecks[input.Below(std::size(kChecks))];
  // A copy that has no room behind it, so that a sanitizer detects reads past the end.
  check(input.Rest());
}

template <typename Message>
std::string Seed(const Message& message) {
  const auto check = CheckExactly<Message>;
  const auto rounded = Check<Message>;
  for (size_t i = 0; i < std::size(kChecks); ++i) {
    if (kChecks[i] == check || kChecks[i] == rounded) {
      return std::string(1, static_cast<char>(i)) + Encode(message);
    }
  }
  CHECK(!"a message without a check");
  return "";
}

std::string HeaderSeed(char check, uint8_t type) {
  FrameHeader header;
  header.type = type;
  header.payload_bytes = 96;
  std::string meta = "meta";
  AppendExposed({{nullptr, 32}, {nullptr, 64}}, &header, &meta);
  const FrameHeaderBytes bytes = Encode(header);
  return check + std::string(bytes.begin(), bytes.end()) + meta;
}

std::vector<std::string> Seeds() {
  Signature signature;
  signature.name = "dense/kernel";
  signature.shapes = "float32[128,10]";
  signature.blocks = {8, 16};
  PushRequest push;
  push.steps = {{0.5, 1}};
  push.entries = {{1, UpdateKind::kGradient, 0, 0, 0},
                  {2, UpdateKind::kRows, 0, 2, 4},
                  {3, UpdateKind::kTableRows, 0, 2, 4, DType::kFloat16},
                  {4, UpdateKind::kDelta, 0, 0, 0}};
  push.of_tasks = true;
  push.commits = {{1, 2, 3}};
  TableConfig config;
  config.width = 4;
  return {
      HeaderSeed(0, static_cast<uint8_t>(CollectiveFrame::kData)),
      HeaderSeed(1, static_cast<uint8_t>(MessageType::kPush)),
      Seed(Hello{1, 2, 3, Nonce{4}}),
      Seed(Challenge{Nonce{1}, Digest{2}}),
      Seed(Sharing{true, true, {7, {8, 9}}}),
      Seed(signature),
      Seed(Reply{true, "all_reduce 'a'", 1, 2, 3.5}),
      Seed(Abort{StatusCode::kInternal, "why"}),
      Seed(OpenRequest{1, 2}),
      Seed(CreateRequest{{{"w", DType::kFloat32, 8, true}, {"b", DType::kBytes, 3, false}}}),
      Seed(CreateReply{{1, 2}}),
      Seed(BindRequest{{}, {{1, {2, 3}, 0.1}}}),
      Seed(PullRequest{true, {{1, 2}, {3, 4}}}),
      Seed(PullReply{1, {2, 3}}),
      Seed(push),
      Seed(SetRequest{{1, 2}}),
      Seed(ExchangeRequest{1, 0.5, {1, 2}}),
      Seed(ReduceRequest{1, 2, {DType::kFloat32, DType::kInt64}, {3, 4}}),
      Seed(TableRequest{{{"t", config, true}}}),
      Seed(LookupRequest{true, {{1, 2, DType::kFloat16}, {3, 4, DType::kFloat32}}}),
      Seed(ScanRowsRequest{1, 2, 3, 4, true}),
      Seed(EditRowsRequest{1, EditKind::kUpsert, 2, 3, 4}),
      Seed(FindRowsRequest{1, 2, true}),
      Seed(ResolveRequest{{1, 2, 3}, {0, 1}}),
      Seed(CommitRequest{{1, 2, 3}, true}),
      Seed(ErrorReply{StatusCode::kInternal, "why"}),
  };
}

FUZZ_TARGET(Run, Seeds);

}  // namespace
}  // namespace tfdist::fuzz::messages
