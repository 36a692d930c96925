// SPDX-License-Identifier: Apache-2.0
// csrc/torch_abi over a libtorch that is a few functions here, each of which can be made to fail, and with and without
// what only torch 2.13 has. Compiled with the address sanitizer, which sees what is freed twice or never. Prints
//
//     <case>\t<result, or the exception's sentence>
#include <cstdio>
#include <functional>
#include <list>

#include "ops/op.h"
#include "torch_abi/abi.cpp"
#include "torch_abi/library.cpp"
#include "torch_abi/tensor.cpp"

namespace plab::torch_abi {

struct TensorOpaque {
  std::vector<int64_t> sizes, strides;
  int32_t dtype, device_type, device_index;
  int64_t offset = 0;
};
struct StringOpaque {
  std::string text;
};
struct ListOpaque {
  std::vector<StackValue> values;
};
struct LibraryOpaque {
  std::string key;
};

namespace {

std::string failing;  // the function of libtorch that fails
int fails_after = 0;  // calls that still succeed
const char* what = nullptr;
std::string seen;  // what libtorch was asked

ErrorCode answer(const char* function) { return failing == function && fails_after-- <= 0 ? 7 : 0; }

void show(const char* name, const std::string& result) { std::printf("%s\t%s\n", name, result.c_str()); }
void show(const char* name, const std::function<std::string()>& body) {
  try {
    show(name, body());
  } catch (const std::exception& error) {
    show(name, error.what());
  }
  failing.clear(), fails_after = 0, seen.clear();
}
void fail(const char* function, int after = 0) { failing = function, fails_after = after; }

// The functions' names are those of the table.
#define PLAB_FAKE(name, parameters, ...)                   \
  torch.name = [] parameters -> ErrorCode {                \
    if (const ErrorCode code = answer(#name)) return code; \
    __VA_ARGS__;                                           \
    return 0;                                              \
  }

std::list<LibraryOpaque> libraries;  // libtorch keeps those that are not deleted

void fill() {
  torch.aoti_torch_device_type_cpu = [] { return 0; };
  torch.aoti_torch_device_type_cuda = [] { return 1; };
  for (auto* dtype :
       {&torch.aoti_torch_dtype_float32, &torch.aoti_torch_dtype_float64, &torch.aoti_torch_dtype_bfloat16,
        &torch.aoti_torch_dtype_float16, &torch.aoti_torch_dtype_uint8, &torch.aoti_torch_dtype_int8,
        &torch.aoti_torch_dtype_int16, &torch.aoti_torch_dtype_int32, &torch.aoti_torch_dtype_int64,
        &torch.aoti_torch_dtype_bool, &torch.aoti_torch_dtype_complex64, &torch.aoti_torch_dtype_complex128})
    *dtype = [] { return 0; };
  torch.aoti_torch_dtype_float32 = [] { return 6; };
  torch.aoti_torch_dtype_float64 = [] { return 7; };
  PLAB_FAKE(aoti_torch_new_tensor_handle, (TensorHandle t, TensorHandle * r), *r = new TensorOpaque(*t));
  PLAB_FAKE(aoti_torch_delete_tensor_object, (TensorHandle t), delete t);
  PLAB_FAKE(aoti_torch_get_dim, (TensorHandle t, int64_t * r), *r = t->sizes.size());
  PLAB_FAKE(aoti_torch_get_sizes, (TensorHandle t, int64_t * *r), *r = t->sizes.data());
  PLAB_FAKE(aoti_torch_get_strides, (TensorHandle t, int64_t * *r), *r = t->strides.data());
  PLAB_FAKE(aoti_torch_get_dtype, (TensorHandle t, int32_t * r), *r = t->dtype);
  PLAB_FAKE(aoti_torch_get_device_type, (TensorHandle t, int32_t * r), *r = t->device_type);
  PLAB_FAKE(aoti_torch_get_device_index, (TensorHandle t, int32_t * r), *r = t->device_index);
  PLAB_FAKE(aoti_torch_empty_strided,
            (int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t type,
             int32_t index, TensorHandle* r),
            *r = new TensorOpaque{{sizes, sizes + dims}, {strides, strides + dims}, dtype, type, index});
  PLAB_FAKE(torch_string_c_str, (StringHandle s, const char** r), *r = s->text.data());
  PLAB_FAKE(torch_string_length, (StringHandle s, size_t * r), *r = s->text.size());
  PLAB_FAKE(torch_delete_string, (StringHandle s), delete s);
  PLAB_FAKE(torch_new_list_reserve_size, (size_t, ListHandle * r), *r = new ListOpaque);
  PLAB_FAKE(torch_list_size, (ListHandle l, size_t * r), *r = l->values.size());
  PLAB_FAKE(torch_list_get_item, (ListHandle l, size_t i, StackValue * r), *r = l->values.at(i));
  PLAB_FAKE(torch_list_push_back, (ListHandle l, StackValue v), l->values.push_back(v));
  PLAB_FAKE(torch_delete_list, (ListHandle l), delete l);
  torch.torch_parallel_for = [](int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context) {
    seen += text(std::array{begin, end, grain});
    for (int64_t i = begin; i < end; i += grain) body(i, std::min(i + grain, end), context);
    return ErrorCode{0};
  };
  PLAB_FAKE(aoti_torch_library_init_def, (const char* ns, const char*, uint32_t, LibraryHandle* r),
            *r = &libraries.emplace_back(), seen += std::string(ns) + " ");
  PLAB_FAKE(aoti_torch_library_init_impl,
            (const char*, const char* key, const char*, uint32_t, LibraryHandle* r),
            *r = &libraries.emplace_back(key), seen += std::string(key) + " ");
  PLAB_FAKE(aoti_torch_library_def, (LibraryHandle, const char* schema), seen += std::string(schema) + " ");
  PLAB_FAKE(torch_library_impl, (LibraryHandle l, const char* name, BoxedKernel, uint64_t),
            seen += l->key + ":" + name + " ");
  PLAB_FAKE(aoti_torch_delete_library_object, (LibraryHandle l),
            seen += "without " + (l->key.empty() ? "ns" : l->key) + " ");
}

Tensor made(std::vector<int64_t> sizes) { return empty(sizes, Dtype::kFloat32, {0, -1}); }
StackValue string_of(const char* text) { return to_bits(new StringOpaque{text}); }

double halved(double x, int64_t times) { return x / double(1 << times); }
constexpr OpDef kOps[] = {{"halved(float x, int times) -> float", &Box<&halved>::call}};

void sizes_and_names() {
  const Tensor tensor = made({3, 2, 0, 4});
  for (const int64_t dim : {0, 3, 4, -1, -4, -5})
    show(("size " + std::to_string(dim)).c_str(), [&] { return std::to_string(tensor.size(dim)); });
  show("strides", [&] { return text(tensor.strides()); });
  show("cpu", [] { return name(Device{0, -1}); });
  show("cuda", [] { return name(Device{1, 3}); });
  show("other device", [] { return name(Device{2, 3}); });
  show("other dtype", [] { return std::string(name(Dtype::kOther)); });
  show("no dtype", [] { return std::to_string(to_torch(Dtype::kOther)); });
}

void checks() {
  const auto of = [](Dtype dtype, Device device) { return empty(std::array{int64_t{1}}, dtype, device); };
  const Tensor x = of(Dtype::kFloat32, {1, 0}), same = x.share(), wide = of(Dtype::kFloat64, {1, 0}),
               other = of(Dtype::kFloat32, {1, 2}), host = of(Dtype::kFloat32, {0, -1}),
               wide_host = of(Dtype::kFloat64, {0, -1});
  const auto alike = [&](const Tensor& y) {
    return [&] {
      check_alike("op", {{"x", x}, {"y", y}});
      return std::string("alike");
    };
  };
  show("same", alike(same));
  show("another dtype", alike(wide));
  show("another GPU", alike(other));
  show("another device", alike(host));
  const auto supported = [](const Tensor& tensor) {
    return [&] { return std::to_string(static_cast<int>(ops::element_type("op", tensor))); };
  };
  show("float32 on a GPU", supported(x));
  show("float64 on a GPU", supported(wide));
  show("float32", supported(host));
  show("float64", supported(wide_host));
}

void errors() {
  const Tensor tensor = made({2});
  const auto dim = [&] { return std::to_string(tensor.dim()); };
  fail("aoti_torch_get_dim"), show("error without text", dim);
  torch.torch_exception_get_what_without_backtrace = [] { return what; };
  for (const char* const text : {static_cast<const char*>(nullptr), "", "torch's own words"}) {
    what = text;
    fail("aoti_torch_get_dim"), show(text == nullptr ? "null text" : *text ? "text" : "empty text", dim);
  }
  const auto memory = [](int32_t type) {
    return [=] {
      return text(empty(std::array{int64_t{5}, int64_t{6}}, Dtype::kFloat64, {type, 1}).sizes());
    };
  };
  fail("aoti_torch_empty_strided"), show("memory with text", memory(1));
  torch.torch_exception_get_what_without_backtrace = nullptr;
  fail("aoti_torch_empty_strided"), show("memory of a GPU", memory(1));
  fail("aoti_torch_empty_strided"), show("memory", memory(0));
}

void boxes() {
  const auto string = [] { return Stack<std::string>::pop(string_of("words")); };
  show("string", string);
  fail("torch_string_c_str"), show("string without characters", string);
  fail("torch_string_length"), show("string without length", string);

  const auto list = [] {
    std::vector<Tensor> tensors;
    for (int64_t i = 1; i < 4; ++i) tensors.push_back(made({i}));
    std::string shapes;
    const StackValue bits = Stack<std::vector<Tensor>>::push(std::move(tensors));
    for (const Tensor& one : Stack<std::vector<Tensor>>::pop(bits)) shapes += text(one.sizes());
    return shapes;
  };
  show("list", list);
  const auto numbers = [] {
    const StackValue bits = Stack<std::vector<int64_t>>::push({4, 5, 6});
    return text(Stack<std::vector<int64_t>>::pop(bits));
  };
  show("numbers", numbers);
  fail("torch_list_size"), show("list without a size", numbers);
  fail("torch_list_get_item", 1), show("list without an item", numbers);

  const auto optional = [](std::optional<int64_t> value) {
    return [=] {
      const auto popped = Stack<std::optional<int64_t>>::pop(Stack<std::optional<int64_t>>::push(value));
      return (popped ? std::to_string(*popped) : "none") + seen;
    };
  };
  show("some", optional(8));
  show("none", optional(std::nullopt));
  PLAB_FAKE(torch_delete_stable_ivalue, (StackValue * box), delete box, seen += " by libtorch");
  show("some since 2.13", optional(8));
  show("none since 2.13", optional(std::nullopt));
  torch.torch_delete_stable_ivalue = nullptr;

  for (const auto& [arguments, results] : {std::pair{2, 1}, {1, 1}, {2, 2}})
    show(("call " + std::to_string(arguments) + " " + std::to_string(results)).c_str(), [&] {
      StackValue stack[2] = {to_bits(20.0), to_bits(int64_t{2})};
      Box<&halved>::call(stack, arguments, results);
      return std::to_string(from_bits<double>(stack[0]));
    });
}

void loops() {
  for (const auto& [count, grain] : {std::pair{5, 2}, {5, 0}, {1, 1}, {0, 3}, {-1, 3}})
    show(("loop " + std::to_string(count) + " " + std::to_string(grain)).c_str(), [&] {
      std::string pieces;
      parallel_for(count, grain, [&](int64_t begin, int64_t end) { pieces += text(std::array{begin, end}); });
      return seen + " " + pieces;
    });
  show("loop that throws", [] {
    parallel_for(4, 1, [](int64_t begin, int64_t) {
      if (begin > 0) throw std::runtime_error("piece " + std::to_string(begin));
    });
    return std::string("no exception");
  });
}

void registration() {
  const std::span<const OpDef> ops = kOps;
  const auto registered = [&](bool cuda) {
    return [=] {
      const std::string error = register_ops("ns", std::array{ops}, cuda, "file");
      return error + "; " + seen;
    };
  };
  show("registered", registered(false));
  show("registered with cuda", registered(true));
  fail("torch_library_impl", 1), show("refused", registered(false));
}

}  // namespace
}  // namespace plab::torch_abi

int main() {
  using namespace plab::torch_abi;
  fill();
  sizes_and_names();
  checks();
  errors();
  boxes();
  loops();
  registration();
}
