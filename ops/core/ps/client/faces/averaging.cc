#include "core/ps/client/faces/averaging.h"

#include <memory>
#include <utility>

namespace tfdist::ps {

void Averaging::Exchange(const std::vector<Value>& values, const std::vector<Memory>& moves,
                         double alpha, Done done) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (Status s = state_->CheckParameter(values[i].parameter, "an exchange"); !s.ok()) {
      return done(s);
    }
    const ParameterSpec& spec = state_->parameters.spec(values[i].parameter);
    if (spec.elements > 0 && (values[i].now.data == nullptr || moves[i].data == nullptr)) {
      return done(InvalidArgument(StrCat("parameter '", spec.name, "' cannot exchange no value")));
    }
  }
  state_->submit(std::make_shared<ExchangeOperation>(&state_->parameters, values, moves, alpha,
                                                     &exchanges_, std::move(done)));
}

void Averaging::Reduce(uint64_t key, std::vector<Tensor> tensors, Done done) {
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype < DType::kFloat16 || tensor.dtype > DType::kInt64) {
      return done(InvalidArgument(StrCat("a reduction of opaque bytes, or of unknown dtype ",
                                         static_cast<int>(tensor.dtype))));
    }
  }
  const int server = static_cast<int>(key % static_cast<uint64_t>(state_->options.servers));
  state_->submit(std::make_shared<ReduceOperation>(key, std::move(tensors), server, &state_->pool,
                                                   &reduce_counts_, std::move(done)));
}

}  // namespace tfdist::ps
