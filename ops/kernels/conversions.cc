#include "kernels/conversions.h"

#include <string>

#include "core/base/printable.h"

namespace tfdist {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;

absl::Status ToCore(DataType type, DType* dtype) {
  switch (type) {
    case tensorflow::DT_HALF:
      *dtype = DType::kFloat16;
      break;
    case tensorflow::DT_BFLOAT16:
      *dtype = DType::kBFloat16;
      break;
    case tensorflow::DT_FLOAT:
      *dtype = DType::kFloat32;
      break;
    case tensorflow::DT_DOUBLE:
      *dtype = DType::kFloat64;
      break;
    case tensorflow::DT_INT8:
      *dtype = DType::kInt8;
      break;
    case tensorflow::DT_INT16:
      *dtype = DType::kInt16;
      break;
    case tensorflow::DT_INT32:
      *dtype = DType::kInt32;
      break;
    case tensorflow::DT_INT64:
      *dtype = DType::kInt64;
      break;
    case tensorflow::DT_UINT8:
      *dtype = DType::kUInt8;
      break;
    case tensorflow::DT_BOOL:
      *dtype = DType::kBool;
      break;
    default:
      if (!tensorflow::DataTypeCanUseMemcpy(type)) {
        return absl::InvalidArgumentError(
            StrCat("expected a numeric or bool tensor, received ", DataTypeString(type)));
      }
      *dtype = DType::kBytes;
  }
  return absl::OkStatus();
}

absl::Status ReadReduction(tensorflow::OpKernelConstruction* context, DType* dtype,
                           ReduceOp* reduce_op) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("reduce_op", &name));
  *reduce_op = name == "sum"    ? ReduceOp::kSum
               : name == "mean" ? ReduceOp::kMean
               : name == "min"  ? ReduceOp::kMin
               : name == "max"  ? ReduceOp::kMax
                                : ReduceOp::kProduct;
  DataType type;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &type));
  if (type == tensorflow::DT_BOOL && *reduce_op == ReduceOp::kMean) {
    return absl::InvalidArgumentError(
        "expected sum, min, max or product for bool tensors, received mean");
  }
  return ToCore(type, dtype);
}

absl::Status ToTensorFlow(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), Printable(status.message()));
}

}  // namespace tfdist
