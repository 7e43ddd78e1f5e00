// Values on the wire by a list of their fields, which the writer and the reader share.
//
// A struct lists its fields once, in their order on the wire, in a static function
//
//   template <typename Message, typename Visitor>
//   static void Fields(Message& m, Visitor& visit);
//
// which the writer (of a const Message) and the reader run:
//
//   visit(m.a, m.b)                       numbers, booleans, strings, arrays of numbers, structs
//   with
//                                         Fields, and lists of them
//   visit.Text(m.t, max_bytes)            a string that the writer cuts
//   visit.Code(m.s)                       a status code, of which any number is taken
//   visit.Enum(m.c, first, last)          an enumeration; a value outside of the range is malformed
//   visit.Zipped(m.d, first, last, m.e)   two lists of one length, element by element; the first
//                                         has enumerations
//   visit.Check(condition)                malformed unless the condition holds
#ifndef TFDIST_OPS_CORE_BASE_FIELDS_H_
#define TFDIST_OPS_CORE_BASE_FIELDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/wire.h"

namespace tfdist {

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
  void Code(StatusCode code) { writer_.Put(static_cast<int32_t>(code)); }
  void Text(const std::string& text, uint16_t max_bytes) { writer_.PutString(text, max_bytes); }
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

// The fields of `value`, one after the other.
template <typename Value>
std::string EncodeFields(const Value& value) {
  FieldWriter writer;
  writer(value);
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
  void Code(StatusCode& code) {
    int32_t number = 0;
    reader_.Get(&number);
    code = static_cast<StatusCode>(number);
  }
  void Text(std::string& text, uint16_t) { reader_.GetString(&text); }
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
      static const size_t min_bytes = EncodeFields(typename T::value_type()).size();
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

// Fails if `bytes` are anything but the fields of one value, which `what` names.
template <typename Value>
Status DecodeFields(std::string_view bytes, const char* what, Value* value) {
  FieldReader reader(bytes);
  reader(*value);
  return reader.Finish(what);
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_FIELDS_H_
