// How some fields are written and read, for message.cc, message_header.cc and message_rows.cc.
#ifndef TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_FIELDS_H_
#define TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_FIELDS_H_

#include <cstdint>

#include "core/base/wire.h"
#include "core/math/dtype.h"
#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

template <typename List>
uint32_t Count(const List& list) {
  return static_cast<uint32_t>(list.size());
}

inline Reader& GetDType(Reader& reader, DType* dtype) {
  return reader.GetEnum(dtype, DType::kFloat16, DType::kBytes);
}

// What rows of a table may travel as.
inline Reader& GetWire(Reader& reader, DType* dtype) {
  return reader.GetEnum(dtype, DType::kFloat16, DType::kFloat32);
}

inline void PutConfig(Writer* writer, const OptimizerConfig& c) {
  writer->Put(c.kind).Put(c.nesterov).Put(c.centered).Put(c.amsgrad);
  writer->Put(c.momentum).Put(c.rho).Put(c.beta_1).Put(c.beta_2).Put(c.epsilon);
  writer->Put(c.learning_rate_power)
      .Put(c.l1_regularization_strength)
      .Put(c.l2_regularization_strength)
      .Put(c.l2_shrinkage_regularization_strength)
      .Put(c.beta);
  writer->Put(c.beta_2_decay).Put(c.epsilon_1).Put(c.epsilon_2).Put(c.clip_threshold);
}

inline void GetConfig(Reader* reader, OptimizerConfig* c) {
  reader->GetEnum(&c->kind, OptimizerKind::kSgd, OptimizerKind::kNadam);
  reader->GetBool(&c->nesterov).GetBool(&c->centered).GetBool(&c->amsgrad);
  reader->Get(&c->momentum).Get(&c->rho).Get(&c->beta_1).Get(&c->beta_2).Get(&c->epsilon);
  reader->Get(&c->learning_rate_power)
      .Get(&c->l1_regularization_strength)
      .Get(&c->l2_regularization_strength)
      .Get(&c->l2_shrinkage_regularization_strength)
      .Get(&c->beta);
  reader->Get(&c->beta_2_decay).Get(&c->epsilon_1).Get(&c->epsilon_2).Get(&c->clip_threshold);
}

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_FIELDS_H_
