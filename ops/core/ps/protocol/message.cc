#include "core/ps/protocol/message.h"

#include "core/base/fields.h"

namespace tfdist::ps {

bool LimitsOfMessages(uint8_t type, FrameLimits* limits) {
  const auto within = [type](MessageType first, MessageType last) {
    return type >= static_cast<uint8_t>(first) && type <= static_cast<uint8_t>(last);
  };
  *limits = {kMaxMetaBytes, kMaxPayloadBytes};
  return within(MessageType::kOpen, MessageType::kExchange) ||
         within(MessageType::kOk, MessageType::kError);
}

StreamOptions MessageStreamOptions() {
  StreamOptions options;
  options.limits_of = LimitsOfMessages;
  options.buffer_bytes = 64 << 10;
  options.receive_budget = 4 << 20;
  options.min_exposed = 64 << 10;
  options.max_exposed_pieces = 64 << 10;
  return options;
}

template <typename Message, typename>
std::string Encode(const Message& message) {
  return EncodeFields(message);
}

template <typename Message, typename>
Status Decode(std::string_view meta, Message* message) {
  return DecodeFields(meta, Message::kName, message);
}

#define TFDIST_INSTANTIATE(Message)            \
  template std::string Encode(const Message&); \
  template Status Decode(std::string_view, Message*)
TFDIST_INSTANTIATE(OpenRequest);
TFDIST_INSTANTIATE(OpenReply);
TFDIST_INSTANTIATE(CreateRequest);
TFDIST_INSTANTIATE(CreateReply);
TFDIST_INSTANTIATE(BindRequest);
TFDIST_INSTANTIATE(PullRequest);
TFDIST_INSTANTIATE(PullReply);
TFDIST_INSTANTIATE(PushRequest);
TFDIST_INSTANTIATE(PushReply);
TFDIST_INSTANTIATE(SetRequest);
TFDIST_INSTANTIATE(ExchangeRequest);
TFDIST_INSTANTIATE(ReduceRequest);
TFDIST_INSTANTIATE(TableRequest);
TFDIST_INSTANTIATE(TableReply);
TFDIST_INSTANTIATE(LookupRequest);
TFDIST_INSTANTIATE(ScanRowsRequest);
TFDIST_INSTANTIATE(ScanRowsReply);
TFDIST_INSTANTIATE(EditRowsRequest);
TFDIST_INSTANTIATE(FindRowsRequest);
TFDIST_INSTANTIATE(FindRowsReply);
TFDIST_INSTANTIATE(ResolveRequest);
TFDIST_INSTANTIATE(ResolveReply);
TFDIST_INSTANTIATE(CommitRequest);
TFDIST_INSTANTIATE(CommitReply);
TFDIST_INSTANTIATE(ErrorReply);
#undef TFDIST_INSTANTIATE

bool SameFields(const TableConfig& a, const TableConfig& b) {
  return EncodeFields(a) == EncodeFields(b);
}

bool SameFields(const OptimizerConfig& a, const OptimizerConfig& b) {
  return EncodeFields(a) == EncodeFields(b);
}

const char* Name(MessageType type) {
  switch (type) {
    case MessageType::kOpen:
      return "open";
    case MessageType::kCreate:
      return "create";
    case MessageType::kBind:
      return "bind";
    case MessageType::kPull:
      return "pull";
    case MessageType::kPush:
      return "push";
    case MessageType::kSet:
      return "set";
    case MessageType::kReduce:
      return "reduce";
    case MessageType::kLeave:
      return "leave";
    case MessageType::kTable:
      return "table";
    case MessageType::kLookup:
      return "lookup";
    case MessageType::kScanRows:
      return "scan_rows";
    case MessageType::kEditRows:
      return "edit_rows";
    case MessageType::kFindRows:
      return "find_rows";
    case MessageType::kResolve:
      return "resolve";
    case MessageType::kCommit:
      return "commit";
    case MessageType::kExchange:
      return "exchange";
    case MessageType::kOk:
      return "ok";
    case MessageType::kError:
      return "error";
  }
  return "unknown";
}

bool IsErrorCode(StatusCode code) {
  switch (code) {
    case StatusCode::kCancelled:
    case StatusCode::kInvalidArgument:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kInternal:
    case StatusCode::kUnavailable:
      return true;
    case StatusCode::kOk:
      break;
  }
  return false;
}

}  // namespace tfdist::ps
