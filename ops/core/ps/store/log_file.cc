#include "core/ps/store/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/checksum.h"

namespace tfdist::ps {
namespace {

// Limits of the search for a record behind damage.
constexpr uint64_t kMaxSearched = 64 << 20;  // bytes
constexpr int kMaxCandidates = 64;           // for computed checksums

}  // namespace

uint64_t ChecksumOf(const RecordHeader& header, const std::vector<iovec>& pieces) {
  Checksum sum;
  sum.Add(&header, offsetof(RecordHeader, checksum));
  for (const iovec& piece : pieces) sum.Add(piece.iov_base, piece.iov_len);
  return sum.value();
}

Status LogFile::Open(const std::string& path) {
  path_ = path;
  file_ = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // may be a pipe
  struct stat about{};
  if (!file_.valid() || fstat(file_.get(), &about) != 0) {
    return Status(StatusCode::kUnavailable,
                  StrCat(path, ": cannot be read: ", std::strerror(errno)));
  }
  const Status none = InvalidArgument(StrCat(path, ": not a log of rows"));
  if (!S_ISREG(about.st_mode)) return none;
  size_ = static_cast<uint64_t>(about.st_size);
  if (size_ < kLogMagicBytes) return Status();  // the server was killed when it created the file
  char magic[kLogMagicBytes];
  if (Status s = Read(magic, kLogMagicBytes); !s.ok()) return s;
  if (std::memcmp(magic, kLogMagic, kLogMagicBytes) != 0) return none;
  next_ = offset_ = kLogMagicBytes;
  return Status();
}

Status LogFile::Next(Found* found) {
  *found = Found::kEnd;
  offset_ = next_;
  if (left() < sizeof(header_) || offset_ == 0) return Status();
  if (Status s = Read(&header_, sizeof(header_)); !s.ok()) return s;
  const uint64_t room = left() - sizeof(header_);
  if (header_.meta_bytes > room || header_.array_bytes > room - header_.meta_bytes) return Status();
  content_.resize(header_.meta_bytes + header_.array_bytes);
  if (Status s = Read(content_.data(), content_.size()); !s.ok()) return s;
  next_ = offset_ + sizeof(header_) + content_.size();
  checksum_ = ChecksumOf(header_, {{content_.data(), content_.size()}});
  *found = checksum_ == header_.checksum ? Found::kRecord : Found::kDamage;
  return Status();
}

bool LogFile::HasRecordBehind() {
  std::string rest(std::min(left(), kMaxSearched), '\0');
  const ssize_t count = pread(file_.get(), rest.data(), rest.size(), static_cast<off_t>(offset_));
  if (count < 0) return false;
  const auto size = static_cast<size_t>(count);
  int candidates = 0;
  for (size_t at = 1; at + sizeof(RecordHeader) <= size && candidates < kMaxCandidates; ++at) {
    RecordHeader header;
    std::memcpy(&header, rest.data() + at, sizeof(header));
    const uint64_t room = size - at - sizeof(header);
    if (header.kind < RecordKind::kTable || header.kind > RecordKind::kShard ||
        header.meta_bytes > room || header.array_bytes > room - header.meta_bytes) {
      continue;
    }
    ++candidates;
    char* const content = rest.data() + at + sizeof(header);
    const uint64_t bytes = header.meta_bytes + header.array_bytes;
    if (ChecksumOf(header, {{content, bytes}}) == header.checksum) return true;
  }
  return false;
}

Status LogFile::Read(void* to, size_t bytes) {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = read(file_.get(), next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return Status(StatusCode::kUnavailable,
                    StrCat(path_, ": cannot be read: ",
                           count < 0 ? std::strerror(errno) : "it has become shorter"));
    }
    next += count;
    bytes -= static_cast<size_t>(count);
  }
  return Status();
}

}  // namespace tfdist::ps
