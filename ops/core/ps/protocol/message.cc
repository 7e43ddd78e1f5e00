#include "core/ps/protocol/message.h"

#include <algorithm>
#include <type_traits>

#include "core/base/wire.h"

namespace tfdist::ps {
namespace {

// Whether T lists its fields.
template <typename T, typename Visitor, typename = void>
struct HasFields : std::false_type {};
template <typename T, typename Visitor>
struct HasFields<T, Visitor,
                 std::void_t<decltype(T::Fields(std::declval<T&>(), std::declval<Visitor&>()))>>
    : std::true_type {};

template <typename T>
struct IsList : std::false_type {};
template <typename T>
struct IsList<std::vector<T>> : std::true_type {};

// Appends the fields that it visits.
class FieldWriter {
 public:
  template <typename... Values>
  void operator()(const Values&... values) {
    (PutOne(values), ...);
  }
  template <typename E>
  void Enum(E value, E, E) {
    writer_.Put(value);
  }
  template <typename E, typename T>
  void Zipped(const std::vector<E>& enums, E, E, const std::vector<T>& values) {
    const size_t count = std::min(enums.size(), values.size());
    writer_.Put(static_cast<uint32_t>(count));
    for (size_t i = 0; i < count; ++i) writer_.Put(enums[i]).Put(values[i]);
  }
  void Check(bool) {}
  std::string Take() { return writer_.Take(); }

 private:
  template <typename T>
  void PutOne(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      writer_.PutString(value);
    } else if constexpr (IsList<T>::value) {
      writer_.Put(static_cast<uint32_t>(value.size()));
      for (const auto& each : value) PutOne(each);
    } else if constexpr (HasFields<const T, FieldWriter>::value) {
      T::Fields(value, *this);
    } else {
      static_assert(!std::is_enum_v<T>, "an enumeration has a range");
      writer_.Put(value);
    }
  }

  Writer writer_;
};

template <typename Message>
std::string Written(const Message& message) {
  FieldWriter writer;
  writer(message);
  return writer.Take();
}

// Fills in the fields that it visits. After the first failure it reads nothing more.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : reader_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (GetOne(&values), ...);
  }
  template <typename E>
  void Enum(E& value, E first, E last) {
    reader_.GetEnum(&value, first, last);
  }
  template <typename E, typename T>
  void Zipped(std::vector<E>& enums, E first, E last, std::vector<T>& values) {
    const uint32_t count = reader_.GetCount(sizeof(E) + sizeof(T));
    enums.resize(count);
    values.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      reader_.GetEnum(&enums[i], first, last).Get(&values[i]);
    }
  }
  void Check(bool condition) {
    if (!condition) reader_.Fail();
  }
  Status Finish(const char* what) const { return reader_.Finish(what); }

 private:
  template <typename T>
  void GetOne(T* value) {
    if constexpr (std::is_same_v<T, bool>) {
      reader_.GetBool(value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      reader_.GetString(value);
    } else if constexpr (IsList<T>::value) {
      // Empty strings and lists, and no optional fields: no entry is shorter than a default one.
      static const size_t min_bytes = Written(typename T::value_type()).size();
      value->resize(reader_.GetCount(min_bytes));
      for (auto& each : *value) GetOne(&each);
    } else if constexpr (HasFields<T, FieldReader>::value) {
      T::Fields(*value, *this);
    } else {
      static_assert(!std::is_enum_v<T>, "an enumeration has a range");
      reader_.Get(value);
    }
  }

  Reader reader_;
};

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

template <typename Message, typename>
std::string Encode(const Message& message) {
  return Written(message);
}

template <typename Message, typename>
Status Decode(std::string_view meta, Message* message) {
  FieldReader reader(meta);
  reader(*message);
  return reader.Finish(Message::kName);
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
TFDIST_INSTANTIATE(ReduceRequest);
TFDIST_INSTANTIATE(TableRequest);
TFDIST_INSTANTIATE(TableReply);
TFDIST_INSTANTIATE(LookupRequest);
TFDIST_INSTANTIATE(ScanRowsRequest);
TFDIST_INSTANTIATE(ScanRowsReply);
TFDIST_INSTANTIATE(EditRowsRequest);
TFDIST_INSTANTIATE(FindRowsRequest);
TFDIST_INSTANTIATE(FindRowsReply);
TFDIST_INSTANTIATE(ErrorReply);
#undef TFDIST_INSTANTIATE

bool SameFields(const TableConfig& a, const TableConfig& b) { return Written(a) == Written(b); }

bool SameFields(const OptimizerConfig& a, const OptimizerConfig& b) {
  return Written(a) == Written(b);
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
