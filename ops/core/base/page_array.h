// An array of zeroed pages from mmap. An array that is outgrown returns to the system at once; in
// the heap of one thread it would not be available to the arrays of others.
#ifndef TFDIST_OPS_CORE_BASE_PAGE_ARRAY_H_
#define TFDIST_OPS_CORE_BASE_PAGE_ARRAY_H_

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace tfdist::ps {

template <typename T>
class PageArray {
 public:
  explicit PageArray(size_t size)
      : size_(size),
        memory_(mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~PageArray() { munmap(memory_, size_ * sizeof(T)); }
  PageArray(const PageArray&) = delete;
  PageArray& operator=(const PageArray&) = delete;

  void swap(PageArray* other) {
    std::swap(size_, other->size_);
    std::swap(memory_, other->memory_);
  }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return static_cast<T*>(memory_)[i]; }
  const T& operator[](size_t i) const { return static_cast<const T*>(memory_)[i]; }

 private:
  size_t size_;
  void* memory_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_BASE_PAGE_ARRAY_H_
