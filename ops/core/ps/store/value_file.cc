#include "core/ps/store/value_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/checked_size.h"
#include "core/base/checksum.h"

namespace tfdist::ps {
namespace {

uint64_t ChecksumOf(const char* data, size_t bytes) {
  Checksum sum;
  sum.Add(data, bytes);
  return sum.value();
}

}  // namespace

void ValueFile::Begin(std::string path) {
  path_ = std::move(path);
  file_.Reset();
  end_ = 0;
  places_.clear();
}

bool ValueFile::Write(const void* shard, const char* data, size_t bytes, Copy* copy) {
  if (!file_.valid()) {
    file_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_.valid()) return false;
  }
  const auto [places, is_new] = places_.emplace(shard, Places{end_, false});
  if (is_new) end_ += 2 * bytes;
  copy->offset = places->second.offset + (places->second.second ? bytes : 0);
  copy->checksum = ChecksumOf(data, bytes);
  for (size_t done = 0; done < bytes;) {
    const ssize_t count =
        pwrite(file_.get(), data + done, bytes - done, static_cast<off_t>(copy->offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  places->second.second = !places->second.second;
  return true;
}

Status ValueFile::Read(const std::string& path, const Copy& copy, size_t bytes, BlockPtr* value) {
  const auto damaged = [&](const std::string& what) {
    return InvalidArgument(StrCat(path, ": ", what));
  };
  const auto unreadable = [&] {
    return Status(StatusCode::kUnavailable,
                  StrCat(path, ": cannot be read: ", std::strerror(errno)));
  };
  // A pipe in its place would keep a blocking open waiting.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && (errno == ENOENT || errno == ELOOP)) return damaged(std::strerror(errno));
  struct stat about{};
  if (!file.valid() || fstat(file.get(), &about) != 0) return unreadable();
  const auto size = static_cast<uint64_t>(about.st_size);
  // Before memory is allocated.
  if (!S_ISREG(about.st_mode) || !(CheckedSize(copy.offset) + bytes).IsAtMost(size)) {
    return damaged(StrCat("expected ", bytes, " bytes at ", copy.offset, " of a file, received ",
                          S_ISREG(about.st_mode) ? StrCat("a file of ", size) : "no file"));
  }
  auto block = std::make_shared<Block>(bytes);
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = pread(file.get(), block->data() + done, bytes - done,
                                static_cast<off_t>(copy.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable();
    if (count == 0) return damaged(StrCat("expected ", bytes, " bytes at ", copy.offset));
    done += static_cast<size_t>(count);
  }
  if (ChecksumOf(block->data(), bytes) != copy.checksum) {
    return damaged(StrCat("the ", bytes, " bytes at ", copy.offset, " are damaged"));
  }
  *value = std::move(block);
  return Status();
}

}  // namespace tfdist::ps
