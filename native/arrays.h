// Borrowed numpy arrays, checked for type, shape and contiguity; messages name the expected and the actual value.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace elasticdl {

namespace nb = nanobind;

constexpr int64_t kAnyLength = -1;

template <class T>
struct Element;
template <>
struct Element<int64_t> {
  static constexpr const char* name = "int64";
  static bool matches(char code) { return code == 'q' || (code == 'l' && sizeof(long) == 8); }
};
template <>
struct Element<float> {
  static constexpr const char* name = "float32";
  static bool matches(char code) { return code == 'f'; }
};

// T const: read only. Keeps a reference to the array.
template <class T>
class Array {
 public:
  using Item = std::remove_const_t<T>;

  Array(const char* name, nb::handle object, std::initializer_list<int64_t> shape) {
    const int writable = std::is_const_v<T> ? 0 : PyBUF_WRITABLE;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      throw nb::type_error(
          (wanted(name, shape) + ", got an object of type " + nb::type_name(object.type()).c_str()).c_str());
    }
    std::string problem = fault(shape, writable != 0);
    if (!problem.empty()) {
      const bool type = problem[0] == '!';
      std::string message = wanted(name, shape) + ", got " + problem.substr(type ? 1 : 0);
      PyBuffer_Release(&buffer_);
      if (type) throw nb::type_error(message.c_str());
      throw nb::value_error(message.c_str());
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { PyBuffer_Release(&buffer_); }

  T* data() const { return static_cast<T*>(buffer_.buf); }
  size_t rows() const { return static_cast<size_t>(buffer_.shape[0]); }
  size_t columns() const { return static_cast<size_t>(buffer_.shape[1]); }

 private:
  static std::string shape_text(const int64_t* shape, size_t dims) {
    std::string text = "(";
    for (size_t i = 0; i < dims; ++i) {
      if (i != 0) text += ", ";
      text += shape[i] == kAnyLength ? "n" : std::to_string(shape[i]);
    }
    return text + (dims == 1 ? ",)" : ")");
  }

  static std::string wanted(const char* name, std::initializer_list<int64_t> shape) {
    return std::string(name) + ": expected a C-contiguous " + (std::is_const_v<T> ? "" : "writable ") +
           Element<Item>::name + " array of shape " + shape_text(shape.begin(), shape.size());
  }

  // What is wrong with the array; a leading ! marks a wrong type rather than a wrong value.
  std::string fault(std::initializer_list<int64_t> shape, bool writable) const {
    const char* format = buffer_.format != nullptr ? buffer_.format : "B";
    const char* code = *format == '<' || *format == '=' || *format == '@' ? format + 1 : format;
    if (std::strlen(code) != 1 || !Element<Item>::matches(*code)) {
      return std::string("!elements of format '") + format + "'";
    }
    int64_t dims[8] = {};
    if (buffer_.ndim > 8) return "an array of " + std::to_string(buffer_.ndim) + " dimensions";
    bool fits = buffer_.ndim == static_cast<int>(shape.size());
    for (int i = 0; i < buffer_.ndim; ++i) {
      dims[i] = buffer_.shape[i];
      if (fits && shape.begin()[i] != kAnyLength) fits = dims[i] == shape.begin()[i];
    }
    if (!fits) return "shape " + shape_text(dims, static_cast<size_t>(buffer_.ndim));
    if (!PyBuffer_IsContiguous(&buffer_, 'C')) return "one with gaps between its elements";
    if (writable && buffer_.readonly) return "a read-only one";
    if (reinterpret_cast<uintptr_t>(buffer_.buf) % alignof(Item) != 0) return "one that is not aligned";
    return "";
  }

  Py_buffer buffer_;
};

}  // namespace elasticdl
