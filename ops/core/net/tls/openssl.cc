#include "core/net/tls/openssl.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "core/base/printable.h"

namespace tfdist::openssl {
namespace {

constexpr unsigned long kVersion3 = 0x30000000;
constexpr int kVersionText = 0;                     // OPENSSL_VERSION
constexpr uint64_t kNoExitHandler = 0x00080000;     // OPENSSL_INIT_NO_ATEXIT
constexpr int kSubjectAltName = 85;                 // NID_subject_alt_name
constexpr unsigned long kNameOnOneLine = 0x82031f;  // XN_FLAG_ONELINE | ASN1_STRFLGS_ESC_CTRL
constexpr size_t kMaxText = 200;                    // of a name in a peer's certificate

std::mutex load_mutex;
std::atomic<const Functions*> loaded{nullptr};

// Never destroyed: threads may look at them while the process exits.
std::shared_mutex& Gate() {
  static auto* const gate = new std::shared_mutex;
  return *gate;
}
// Set before the gate is taken: threads that come later do not keep the process waiting.
std::atomic<bool> exiting{false};

Status NoLibrary(const std::string& why) {
  return Status(StatusCode::kFailedPrecondition, StrCat("TLS needs OpenSSL 3: ", why));
}

// A memory BIO, and the text that was printed into it.
class Printer {
 public:
  explicit Printer(const Functions& f) : f_(f), bio_(f.BIO_new(f.BIO_s_mem())) {}
  ~Printer() { f_.BIO_free(bio_); }
  Printer(const Printer&) = delete;

  Bio* bio() { return bio_; }
  std::string Text() {
    std::array<char, kMaxText> bytes;
    const int size = f_.BIO_read(bio_, bytes.data(), static_cast<int>(bytes.size()));
    return size > 0 ? Printable(std::string(bytes.data(), static_cast<size_t>(size))) : "";
  }

 private:
  const Functions& f_;
  Bio* const bio_;
};

}  // namespace

Status Load(const Functions** functions, const char* library) {
  const std::lock_guard<std::mutex> lock(load_mutex);
  if (loaded != nullptr && library == std::string_view(kLibrary)) {
    *functions = loaded;
    return Status();
  }
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return NoLibrary(dlerror());
  Functions found;
  const char* missing = nullptr;
#define TFDIST_FIND(result, name, arguments)                                \
  found.name = reinterpret_cast<result(*) arguments>(dlsym(handle, #name)); \
  if (found.name == nullptr && missing == nullptr) missing = #name;
  TFDIST_OPENSSL_FUNCTIONS(TFDIST_FIND)
#undef TFDIST_FIND
  if (found.OpenSSL_version_num != nullptr && found.OpenSSL_version_num() < kVersion3) {
    return NoLibrary(StrCat(library, " is ", found.OpenSSL_version(kVersionText)));
  }
  if (missing != nullptr) return NoLibrary(StrCat(library, " has no function ", missing));
  if (found.OPENSSL_init_ssl(kNoExitHandler, nullptr) != 1) {
    return NoLibrary(StrCat(library, " cannot be initialized: ", TakeErrors(found)));
  }
  // Another library of this process may have initialized OpenSSL with its exit handler.
  std::atexit([] {
    exiting = true;
    const std::unique_lock<std::shared_mutex> calls_have_ended(Gate());
  });
  *functions = new Functions(found);
  loaded = *functions;
  return Status();
}

const Functions& Loaded() { return *loaded; }

Entry::Entry() {
  if (exiting) return;
  lock_ = std::shared_lock<std::shared_mutex>(Gate());
  open_ = !exiting;
}

std::string TakeErrors(const Functions& f) {
  std::string text;
  while (const unsigned long error = f.ERR_get_error()) {
    const char* const reason = f.ERR_reason_error_string(error);
    std::array<char, 256> bytes;
    if (reason == nullptr) f.ERR_error_string_n(error, bytes.data(), bytes.size());
    text += StrCat(text.empty() ? "" : "; ", reason != nullptr ? reason : bytes.data());
  }
  return text;
}

std::string TimeText(const Functions& f, const Asn1Time* time) {
  std::tm parts{};
  std::array<char, 64> bytes;
  if (f.ASN1_TIME_to_tm(time, &parts) != 1) return "an invalid time";
  const size_t size = std::strftime(bytes.data(), bytes.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return std::string(bytes.data(), size);
}

std::string SubjectOf(const Functions& f, const X509* certificate) {
  Printer printer(f);
  f.X509_NAME_print_ex(printer.bio(), f.X509_get_subject_name(certificate), 0, kNameOnOneLine);
  const std::string subject = printer.Text();
  return StrCat("'", subject, "'");
}

std::string NamesOf(const Functions& f, const X509* certificate) {
  const int position = f.X509_get_ext_by_NID(certificate, kSubjectAltName, -1);
  if (position < 0) return "no name";
  Printer printer(f);
  f.X509V3_EXT_print(printer.bio(), f.X509_get_ext(certificate, position), 0, 0);
  return printer.Text();
}

}  // namespace tfdist::openssl
